# Small files that are read by processes which end at once: their number leads to them.
for kind in ext4 xfs btrfs; do
    case $kind in ext4) disk=vda ;; xfs) disk=vdb ;; btrfs) disk=vdc ;; esac
    mount -t $kind /dev/$disk /mnt || continue
    mkdir -p /mnt/small
    for i in $(seq 40); do dd if=/bin/hugeswap of=/mnt/small/$i bs=16k count=1 skip=$i 2> /dev/null; done
    sync
    echo 1 > /proc/sys/vm/drop_caches
    for i in $(seq 40); do guest bind 1 cat /mnt/small/$i > /dev/null; done
    start
    moved() {
        for i in $(seq 40); do guest where /mnt/small/$i; done | grep -c node0=4
    }
    tries=0
    until [ "$(moved)" -ge 40 ] || [ $tries -ge 100 ]; do
        for round in $(seq 10); do
            for i in $(seq 40); do cat /mnt/small/$i > /dev/null; done
        done
        tries=$((tries + 1))
    done
    echo "NOTE small $kind: $(moved) of 40 after $((tries * 10)) reads, $(tail -n 1 /run/log)"
    check "small-$kind" "$(moved) of 40" [ "$(moved)" -ge 40 ]
    stop
    rm -rf /mnt/small
    umount /mnt
done
