/* Waits for a signal. */
#include <unistd.h>

int main(void) {
    for (;;)
        pause();
}
