# zstd: compresses a file with a window of a half of the size at most, and back at the same time.
set -euo pipefail
text=$2/zstd.in
if [ "${3:-}" = make ]; then
  exec "$PYTHON" "$(dirname "$0")/text.py" "$1" "$text"
fi
window=10
while [ $((2 << (window + 1))) -le "$1" ]; do window=$((window + 1)); done
zstd -q -T1 -6 --long=$window -c "$text" | zstd -q -d --long=$window -c | sha256sum
