#!/usr/bin/env bash
# The first five minutes of somebody new, on a bare Debian 12: what README says, in a root made with
# debootstrap, from the sources to the first run. As root; takes some 3 GB below TMPDIR (/var/tmp) for a while.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "fresh: run this as root" >&2; exit 1; }
    if ! command -v debootstrap >/dev/null; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
    fi
    root=$(mktemp -d "${TMPDIR:-/var/tmp}/hugeswap-fresh-XXXXXX")
    trap 'rm -rf --one-file-system "$root"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    chmod 755 "$root"
    echo "== fresh: a bare Debian 12 in $root"
    debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || { tail -5 "$root.log" >&2; exit 1; }
    rm -f "$root.log"
    mkdir "$root/hugeswap"
    # What a clone would have, as it is now.
    git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null |
        tar -c -T - | tar -x -C "$root/hugeswap"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    # The network is this machine's, which may stand behind a proxy with a certificate of its own.
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl-machine.crt"
    # The mounts are nobody else's, and go with the last process in there.
    status=0
    unshare --mount --propagation private --pid --fork --kill-child bash -ec '
        mount -t proc proc "$0/proc"
        mount --rbind /sys "$0/sys"
        mount --rbind /dev "$0/dev"
        [ ! -e "$0/etc/ssl-machine.crt" ] || trust=CARGO_HTTP_CAINFO=/etc/ssl-machine.crt
        exec env -i ${trust:-} HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
            chroot "$0" /hugeswap/tools/fresh.sh inside' "$root" || status=$?
    exit $status
fi

failed() { echo "fresh: $*" >&2; exit 1; }

echo "== fresh: ./demo"
./demo || failed "./demo ended with $?"

echo "== fresh: what README says under Install and Use"
install -D -m755 target/release/hugeswap /usr/local/bin/hugeswap
install -D -m755 target/release/libhugeswap_preload.so /usr/local/lib/hugeswap/libhugeswap_preload.so
cd /root
hugeswap doctor || failed "doctor ended with $?"
hugeswap man run >/dev/null
hugeswap completions bash >/dev/null
cat >program.py <<'PROGRAM'
import numpy
a = numpy.arange(48 << 20)
assert (a[::4096] == numpy.arange(0, 48 << 20, 4096)).all()
print("right")
PROGRAM
said=$(hugeswap run --verbose --memory 256M --swap /var/tmp --swap-size 2G --stats-json stats.json -- python3 program.py)
[ "$said" = right ] || failed "the program said '$said'"
python3 -c 'import json; s = json.load(open("stats.json")); assert s["counters"]["pswpout"] and not s["unmanaged_programs"]'
hugeswap bench swap-w-seq --memory 128M --size 256M --swap /var/tmp
[ -z "$(ls -A /var/tmp)" ] || failed "left in /var/tmp: $(ls -A /var/tmp)"
echo "== fresh: all is well"
