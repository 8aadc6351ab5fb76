# xz: compresses a file with a large dictionary.
set -euo pipefail
text=$2/xz.in
if [ "${3:-}" = make ]; then
  exec "$PYTHON" "$(dirname "$0")/text.py" $(($1 / 4)) "$text"
fi
xz -T1 --format=xz --lzma2=preset=0,dict=$(($1 / 5)) -c "$text" | sha256sum
