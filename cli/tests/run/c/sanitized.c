/* Something for a sanitizer to look at. */
#include <stdlib.h>

int main(int argc, char **argv)
{
    volatile char *p = malloc(1 << 20);

    if (!p)
        return 1;
    for (int i = 0; i < 1 << 20; i++)
        p[i] = (char)(i * argc);
    int wrong = p[7] != (char)(7 * argc);
    free((void *)p);
    return wrong;
}
