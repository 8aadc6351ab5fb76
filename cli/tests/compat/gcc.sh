# gcc.sh MANAGER: a large source file; the object must be the same to the byte.
set -eu
for i in $(seq 3000); do
  echo "int f$i(int a, int *b) { int s = $i; for (int k = 0; k < a; k++) s += b[k] * $((i % 7 + 1)) ^ (s >> 3); return s; }"
done >large.c
# The directory has another name each time, and debug information names it.
$1 gcc -O1 -g -fdebug-prefix-map="$PWD=." -frandom-seed=1 -c large.c -o large.o
sha256sum large.o
