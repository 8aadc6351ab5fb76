# gcc: one large C file, as generators write them: a table, and functions that use it.
set -euo pipefail
source=$2/large.c
if [ "${3:-}" = make ]; then
  exec "$PYTHON" - "$1" "$source" <<'P'
import random, sys
entries, out = int(sys.argv[1]) // 1340, open(sys.argv[2], "w")
r = random.Random(2)
out.write("struct entry { unsigned key; const char *name; unsigned (*call)(unsigned); short tag[4]; };\n")
for n in range(200):
    a, b, c = (r.randrange(1, 1000) for _ in range(3))
    out.write(f"static unsigned f{n}(unsigned x)\n{{\n  unsigned y = {n};\n")
    out.write(f"  while (x > {a}) {{ y += x * {b}; if (y & {c}) x = x / 3 + y % 7; else x -= {a}; }}\n")
    out.write("  return x ^ y;\n}\n")
out.write("const struct entry table[] = {\n")
for n in range(entries):
    tag = ", ".join(str(r.randrange(-99, 99)) for _ in range(4))
    out.write(f'  {{ {n * 2654435761 % (1 << 32)}u, "name_{n}", f{r.randrange(200)}, {{ {tag} }} }},\n')
out.write("};\n")
out.close()
P
fi
gcc -O1 -S -o - "$source" | sha256sum
