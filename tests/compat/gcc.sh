# gcc.sh MANAGER: a large source file; the object must be the same to the byte.
set -eu
for i in $(seq 3000); do
  echo "int f$i(int a, int *b) { int s = $i; for (int k = 0; k < a; k++) s += b[k] * $((i % 7 + 1)) ^ (s >> 3); return s; }"
done >large.c
$1 gcc -O1 -g -frandom-seed=1 -c large.c -o large.o
sha256sum large.o
