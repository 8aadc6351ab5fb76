#!/usr/bin/env bash
# Tests of the rooms that make few system calls, under Miri, which finds undefined behaviour: docs/testing.md. Takes
# Rust's nightly toolchain: rustup toolchain install nightly --component miri
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: not here, left out (rustup toolchain install nightly --component miri)"
    exit 0
fi
# Addresses travel as numbers, as system calls have them; tables live as long as the process.
export MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks"
cargo +nightly miri test -p hugeswap-mm
cargo +nightly miri test -p hugeswap-swapfile --test places
# One goes through all segments of a device, which would take long.
cargo +nightly miri test -p hugeswap-control --lib -- own:: --skip sets_of_clusters
# The others map tables of many GiB, which Miri would fill.
cargo +nightly miri test -p hugeswap-vma --lib -- words:: phase::
