# node: a map of objects, read in order and at random, and an array that is sorted.
set -eu
exec node --max-old-space-size=$(($1 >> 19)) "$(dirname "$0")/maps.js" "$1"
