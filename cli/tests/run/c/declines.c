/* As far as the library can tell, built with AddressSanitizer. */
#include <stdio.h>

void __asan_init(void) {}

int main(void)
{
	puts("ok");
	return 0;
}
