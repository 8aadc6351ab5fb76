#!/usr/bin/env bash
# What 'hugeswap promote' costs a program that only reads, with nothing to
# promote: pairs of runs, without and with the daemon, one after another.
#
#     benches/promote-overhead.sh [DIR] [PAIRS]
#
# The daemon runs with --observe: on a machine with one node it takes every
# page for one on a slow node and looks at all of it, which is more than it
# does where all is well. Needs root, cc, and 4 GiB of free memory.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-/var/tmp}
pairs=${2:-9}
size_mib=${SIZE_MIB:-4096}

cargo build --release -q -p hugeswap-cli
tool=$(mktemp) log=$(mktemp)
file=$(mktemp -p "$dir" promote-overhead.XXXXXX)
daemon=
cleanup() {
  if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null && wait "$daemon" || true; fi
  rm -f "$tool" "$log" "$file"
}
trap cleanup EXIT
cc -O2 -w -o "$tool" crates/cli/tests/promote_guest/guest.c
"$tool" make "$file" "$size_mib"
"$tool" read "$file" 2 1048576 >/dev/null

seconds() { "$@" | sed -n 's/.*seconds=\([0-9.]*\).*/\1/p'; }
linear() { seconds "$tool" read "$file" 3 1048576; }
random() { seconds "$tool" random "$file" 1000000; }

start() {
  target/release/hugeswap promote --observe --json "$@" >"$log" 2>/dev/null &
  daemon=$!
  # Past the first seconds, in which it learns how much it may watch.
  sleep 3
}
stop() {
  kill "$daemon"
  wait "$daemon" || true
  daemon=
}

median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

for what in linear random; do
  ratios= cpu=
  for ((pair = 0; pair < pairs; pair++)); do
    # In turns first and second, so that drift does not count.
    if ((pair % 2)); then
      start; with=$($what); stop; without=$($what)
    else
      without=$($what); start; with=$($what); stop
    fi
    ratio=$(awk -v a="$with" -v b="$without" 'BEGIN { print a / b }')
    busy=$(grep -o '"overhead_daemon":[0-9.e-]*' "$log" | cut -d: -f2 | tail -n +3 | awk '{ s += $1 } END { print NR ? s / NR * 100 : 0 }')
    sampling=$(grep -o '"overhead_sampling":[0-9.e-]*' "$log" | cut -d: -f2 | tail -n +3 | awk '{ s += $1 } END { print NR ? s / NR * 100 : 0 }')
    echo "$what: without $without s, with $with s, ratio $ratio, daemon $busy %, sampling $sampling %"
    ratios+="$ratio"$'\n'
    cpu+="$busy"$'\n'
  done
  echo "$what: median ratio $(printf %s "$ratios" | median), daemon $(printf %s "$cpu" | median) % of a processor"
done
