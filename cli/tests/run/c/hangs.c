/* A library whose start does not end. */
#include <unistd.h>

__attribute__((constructor)) static void hang(void) {
    for (;;)
        pause();
}
