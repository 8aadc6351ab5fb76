# sort(1): lines in no order.
set -euo pipefail
lines=$2/sort.in
if [ "${3:-}" = make ]; then
  exec "$PYTHON" - "$1" "$lines" <<'P'
import random, sys
size, out = int(sys.argv[1]) * 5 // 9, open(sys.argv[2], "w")
r = random.Random(3)
while size > 0:
    part = "".join("%x %d\n" % (r.getrandbits(100), r.getrandbits(30)) for _ in range(20000))
    out.write(part)
    size -= len(part)
P
fi
LC_ALL=C sort --parallel=2 -S "$1b" "$lines" | sha256sum
