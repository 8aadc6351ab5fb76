# tmpfs: its reads pass no event, a probe tells of them. The files are on a mount of their own.
# By the host's clock, so it must not matter how fast the host is.
PROMOTE="$PROMOTE --interval 200ms --overhead-budget 100%"
mkdir -p /tmp/tracing
mount -t tracefs none /tmp/tracing
probes() { grep -c hugeswap /tmp/tracing/kprobe_events; }
huge_on() { awk -v node=$1 '/ShmemHugePages/ { print $4 }' /sys/devices/system/node/node$1/meminfo; }
mount -t tmpfs -o size=64m none /mnt
guest bind 1 guest make /mnt/file 8
guest loop /mnt/file 20 > /run/loop
sum=$(field sum "$(cat /run/loop)")
check "tmpfs-off-nothing-moves" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 2048 ]
start
check "tmpfs-is-watched" "$(cat /run/err)" sh -c '! grep tmpfs /run/err'
check "tmpfs-probe-is-there" "$(cat /tmp/tracing/kprobe_events)" [ "$(probes)" = 1 ]
cat /mnt/file > /dev/null
sleep 1
check "tmpfs-read-once-stays" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 2048 ]
check "tmpfs-is-promoted" "$(guest where /mnt/file) $(tail -n 1 /run/log)" held_promoted /mnt/file
guest loop /mnt/file 1 > /run/loop
check "tmpfs-contents-are-the-same" "$(cat /run/loop)" [ "$(field sum "$(cat /run/loop)")" = "$sum" ]
# Killed: its probe stays, and the next start takes it away.
kill -9 $daemon
wait $daemon
check "tmpfs-probe-left-behind" "$(cat /tmp/tracing/kprobe_events)" [ "$(probes)" = 1 ]
check "tmpfs-probe-is-off" "$(cat /sys/kernel/debug/kprobes/list 2> /dev/null)" [ "$(cat /tmp/tracing/events/hugeswap/*/enable)" = 0 ]
umount /mnt

# Huge pages.
mount -t tmpfs -o size=64m,huge=always none /mnt
guest bind 1 guest make /mnt/file 8
check "tmpfs-huge-is-huge" "$(huge_on 1) kB" [ "$(huge_on 1)" = 8192 ]
start
check "tmpfs-probe-taken-away" "$(cat /tmp/tracing/kprobe_events)" [ "$(probes)" = 1 ]
check "tmpfs-huge-is-promoted" "$(guest where /mnt/file) $(tail -n 1 /run/log)" held_promoted /mnt/file
check "tmpfs-huge-stays-huge" "$(huge_on 0) kB, $(huge_on 1) kB" [ "$(huge_on 0)" = 8192 ]
guest loop /mnt/file 1 > /run/loop
check "tmpfs-huge-contents" "$(cat /run/loop)" [ "$(field sum "$(cat /run/loop)")" = "$sum" ]
# Somebody takes the probe away, in a moment in which nobody watches: all else goes on.
tries=0
until echo > /tmp/tracing/kprobe_events || [ $tries -ge 1000 ]; do
    tries=$((tries + 1))
    sleep 0.01
done 2> /dev/null
guest hold /mnt/file 1 > /run/held
sleep 1
check "tmpfs-probe-taken-by-others" "$(cat /run/err) $(cat /tmp/tracing/kprobe_events)" sh -c "kill -0 $daemon && [ $tries -lt 1000 ]"
stop
check "tmpfs-clean-stop" "status $status, $(cat /run/err)" [ $status = 0 ]
check "tmpfs-probe-is-gone" "$(cat /tmp/tracing/kprobe_events)" [ "$(probes)" = 0 ]

# Without the kernel's types: it says so, and all else goes on.
: > /tmp/nothing
mount --bind /tmp/nothing /sys/kernel/btf/vmlinux
start
check "no-types-is-said" "$(cat /run/err)" grep -q "tmpfs files are not promoted: /sys/kernel/btf/vmlinux" /run/err
check "no-types-goes-on" "$(cat /run/err)" kill -0 $daemon
stop
umount /sys/kernel/btf/vmlinux
umount /tmp/tracing
umount /mnt
