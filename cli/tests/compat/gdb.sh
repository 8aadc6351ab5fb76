# gdb.sh MANAGER: a debugger attaches, looks at resident memory, and lets go.
set -eu
cat >p.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *p;
int main(void) {
  p = malloc(160 << 20);
  memset(p, 7, 160 << 20);
  printf("%d\n", getpid());
  fflush(stdout);
  sleep(6);
  long s = 0;
  for (long i = 0; i < 160 << 20; i++) s += p[i];
  printf("sum %ld\n", s);
}
C
gcc -g -O1 -o p p.c
$1 ./p >out &
program=$!
while [ ! -s out ]; do sleep 0.1; done
pid=$(head -1 out)
gdb -p "$pid" -batch -ex 'print p[160 * 1024 * 1024 - 5]' -ex 'print (int)getppid() > 0' -ex detach 2>/dev/null | grep -a '^\$'
wait $program
sed 1d out
