/* A library that a program preloads of its own accord: it says that it is there. */
#include <unistd.h>

__attribute__((constructor)) static void begin(void) { write(1, "beside\n", 7); }
