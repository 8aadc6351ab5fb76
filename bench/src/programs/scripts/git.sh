# git: packs a repository anew, with a window of large files.
set -euo pipefail
repository=$2/repository.git
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
if [ "${3:-}" = make ]; then
  git init -q --bare "$repository"
  "$PYTHON" - "$1" <<'P' | git -C "$repository" fast-import --quiet
import random, sys
out, r = sys.stdout.buffer, random.Random(8)
versions = 40
words = [b"%x" % r.getrandbits(r.randrange(8, 60)) for _ in range(20000)]
lines = [b" ".join(r.choices(words, k=9)) for _ in range(int(sys.argv[1]) // versions // 290)]
for n in range(versions):
    for _ in range(len(lines) // 60):
        lines[r.randrange(len(lines))] = b" ".join(r.choices(words, k=9))
    text = b"\n".join(lines)
    out.write(b"commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nx\n" % (n + 1))
    out.write(b"M 644 inline file\ndata %d\n%b\n" % (len(text), text))
P
  exit
fi
git -C "$repository" -c core.bigFileThreshold=2g pack-objects --all --revs --no-reuse-delta --threads=1 \
  --window=40 --depth=50 --stdout -q </dev/null | sha256sum
