#!/bin/busybox sh
# The guest's first process: runs the scenarios and says on the serial line how
# each went, as "PASS name" or "FAIL name: why". The host's test counts them.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /mnt /tmp /run
mount -t tmpfs -o size=64m none /run
for module in $(cat /modules/order); do insmod /modules/$module || echo "no module $module"; done
# With the budget and the interval that everybody has.
PROMOTE="hugeswap promote --from 1 --to 0"

pass() { echo "PASS $1"; }
fail() { echo "FAIL $1: $2"; tail -n 12 /run/log /run/err 2>/dev/null; }
# check NAME WHAT TEST...: the test must hold; WHAT is shown if not.
check() {
    name=$1 what=$2
    shift 2
    if "$@"; then pass "$name"; else fail "$name" "$what"; fi
}
field() { echo "$2" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
# Reads of a disk, in sectors, so far.
sectors() { awk '{ print $3 }' /sys/block/$1/stat; }
counter() { tail -n 1 /run/log | sed "s/.*\"$1\":\([0-9.]*\).*/\1/"; }

# A file's cache, wholly on node 1, read once by a process that is gone.
on_slow() {
    echo 1 > /proc/sys/vm/drop_caches
    guest bind 1 cat $1 > /dev/null
}

start() {
    # Not the one before's: the file is waited for.
    : > /run/log
    $PROMOTE --json "$@" > /run/log 2> /run/err &
    daemon=$!
    # Until it has said what it watches and has drawn its first breath.
    tries=0
    while [ ! -s /run/log ] && [ $tries -lt 3000 ] && kill -0 $daemon; do
        sleep 0.1
        tries=$((tries + 1))
    done
}
stop() {
    kill -TERM $daemon
    wait $daemon
    status=$?
}

# Reads until 99 % of the pages are on node 0; the bound, in rounds of 5, is for what never comes.
promoted() {
    rounds=0
    while [ $rounds -lt ${2:-1000} ]; do
        guest loop $1 5 > /run/loop || return 1
        rounds=$((rounds + 1))
        seen=$(guest where $1)
        n0=$(field node0 "$seen") n1=$(field node1 "$seen")
        [ $((n0 * 100)) -ge $(((n0 + n1) * 99)) ] && [ $n0 -gt 0 ] && return 0
        sleep 0.2
    done
    return 1
}

# The same, read by one program that has it open for a while: it ends when all is there.
held_promoted() {
    for try in $(seq 60); do
        seen=$(guest hold $1 10)
        n0=$(field node0 "$seen") n1=$(field node1 "$seen")
        [ $((n0 * 100)) -ge $(((n0 + n1) * 99)) ] && [ $n0 -gt 0 ] && return 0
        echo "NOTE $1: $seen, $(tail -n 1 /run/log)"
    done
    return 1
}

# A file of so many MiB.
make() {
    guest make $1 $2
}

# What a node can take, in MiB: its free pages above twice the high watermarks.
room() {
    awk -v node=$1 '$1 == "Node" { sub(",", "", $2); here = $2 == node }
        here && $2 == "free" { sum += $3 }
        here && $1 == "high" { sum -= 2 * $2 }
        END { print int(sum / 256) }' /proc/zoneinfo
}

# Takes memory of node 0 that can't be moved until there is room for so many MiB. More becomes free
# for a while after the start: so it is looked again, and may be called again.
fillers=
leave_room() {
    for try in $(seq 20); do
        sleep 0.5
        surplus=$(($(room 0) - $1))
        [ $surplus -le 1 ] && continue
        rm -f /run/filled
        guest bind 0 guest fill $surplus > /run/filled &
        fillers="$fillers $!"
        until [ -s /run/filled ]; do sleep 0.1; done
    done
}
give_room() {
    kill $fillers
    wait $fillers
    fillers=
}

# The firmware's words end without a new line.
echo
for scenario in $(cat /scenarios); do
    begin=$(cut -d ' ' -f 1 /proc/uptime)
    . /scn/$scenario.sh
    echo "TIME $scenario $(awk -v b=$begin '{ print $1 - b }' /proc/uptime)"
done
echo "END"
poweroff -f
