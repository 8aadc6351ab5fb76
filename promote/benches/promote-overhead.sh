#!/usr/bin/env bash
# What 'hugeswap promote' costs a program that only reads, with nothing to
# promote: triples of runs, two without the daemon and one with it.
#
#     promote/benches/promote-overhead.sh [DIR] [TRIPLES]
#
# The order within a triple rotates, so that drift does not count. The two runs
# without say how much two equal runs differ: what is less than that can't be
# seen. Medians, with the interval that holds 95 % of medians drawn anew from
# the same triples.
#
# The daemon runs with --observe: on a machine with one node it takes every
# page for one on a slow node and looks at all of it, which is more than it
# does where all is well. Needs root, cc, and 4 GiB of free memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-/var/tmp}
triples=${2:-9}
size_mib=${SIZE_MIB:-4096}

cargo build --release -q -p hugeswap-cli
tool=$(mktemp) log=$(mktemp) result=$(mktemp)
file=$(mktemp -p "$dir" promote-overhead.XXXXXX)
daemon=
cleanup() {
  if [ -n "$daemon" ]; then kill "$daemon" 2>/dev/null && wait "$daemon" || true; fi
  rm -f "$tool" "$log" "$result" "$file"
}
trap cleanup EXIT
cc -O2 -w -o "$tool" cli/tests/guest/guest.c
"$tool" make "$file" "$size_mib"
"$tool" read "$file" 2 1048576 >/dev/null

seconds() { "$@" | sed -n 's/.*seconds=\([0-9.]*\).*/\1/p'; }
linear() { seconds "$tool" read "$file" 3 1048576; }
random() { seconds "$tool" random "$file" "${READS:-6000000}"; }

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

with() {
  start
  $1
  stop
}

# Median and interval of what comes in, a number a line.
summary() {
  awk '
    function median(v, n,   i, j, t) {
      for (i = 2; i <= n; i++)
        for (j = i; j > 1 && v[j - 1] > v[j]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
      return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
    }
    { all[NR] = $1 }
    END {
      srand(1)
      for (draw = 1; draw <= 1000; draw++) {
        for (i = 1; i <= NR; i++) some[i] = all[int(rand() * NR) + 1]
        medians[draw] = median(some, NR)
      }
      median(medians, 1000)
      printf "%.4f (%.4f to %.4f)\n", median(all, NR), medians[25], medians[975]
    }'
}

share() { grep -o "\"$1\":[0-9.e-]*" "$log" | cut -d: -f2 | awk '{ s += $1 } END { print NR ? s / NR * 100 : 0 }'; }

for what in linear random; do
  on= off= daemon_share= sampling=
  for ((triple = 0; triple < triples; triple++)); do
    times=()
    for ((place = 0; place < 3; place++)); do
      if ((place == triple % 3)); then
        # Not in a subshell: it starts and ends the daemon.
        with "$what" >"$result"
        measured=$(cat "$result")
      else
        times+=("$($what)")
      fi
    done
    ratio=$(awk -v a="$measured" -v b="${times[0]}" -v c="${times[1]}" 'BEGIN { print 2 * a / (b + c) }')
    equal=$(awk -v b="${times[0]}" -v c="${times[1]}" 'BEGIN { print c / b }')
    echo "$what: without ${times[*]} s, with $measured s, ratio $ratio, daemon $(share overhead_daemon) %, sampling $(share overhead_sampling) %"
    on+="$ratio"$'\n'
    off+="$equal"$'\n'
    daemon_share+="$(share overhead_daemon)"$'\n'
    sampling+="$(share overhead_sampling)"$'\n'
  done
  echo "$what: with to without $(printf %s "$on" | summary), without to without $(printf %s "$off" | summary)"
  echo "$what: the daemon, % of a processor, $(printf %s "$daemon_share" | summary), sampling $(printf %s "$sampling" | summary)"
done
