/* As far as the library can tell, built with the sanitizer that has a function NAME. */
#include <stdio.h>

void NAME(void) {}

int main(void)
{
	puts("ok");
	return 0;
}
