/* With a command: runs it with an odd environment. Without: says what its own is. */
#include "check.h"

extern char **environ;

int main(int argc, char **argv) {
  if (argc > 1) {
    char *odd[] = {"B=1", "A=first", "no value", "A=second", "=odd", "Z=", "B=2", 0};
    execve(argv[1], argv + 1, odd);
    STOP("no %s", argv[1]);
  }
  for (char **e = environ; *e; e++) {
    if (!strncmp(*e, "LD_PRELOAD=", 11) || !strncmp(*e, "HUGESWAP_RUN=", 13)) continue;
    say(*e);
    say("\n");
  }
}
