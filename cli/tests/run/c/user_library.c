/* What a user preloads. */
#include "check.h"

__attribute__((constructor)) static void here(void) { say("user library\n"); }
