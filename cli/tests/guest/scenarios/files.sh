# Other file systems, and files that go away meanwhile.
for kind in xfs btrfs; do
    case $kind in xfs) disk=vdb ;; btrfs) disk=vdc ;; esac
    mount -t $kind /dev/$disk /mnt || continue
    make /mnt/file 6
    on_slow /mnt/file
    start
    reads=$(sectors $disk)
    # Somebody has it open: there is no other way to it by its inode.
    check "$kind-is-promoted" "too few" promoted /mnt/file
    echo "NOTE $kind: on node 0 after $((rounds * 5)) reads"
    check "$kind-not-from-disk" "$reads, $(sectors $disk)" [ "$(sectors $disk)" = "$reads" ]
    stop
    umount /mnt
    check "$kind-not-kept-busy" "umount" [ $? = 0 ]
done

mount -t ext4 /dev/vda /mnt
# Deleted while a program reads it.
make /mnt/deleted 4
on_slow /mnt/deleted
start
guest hold /mnt/deleted 30 > /run/held &
holder=$!
sleep 0.3
rm /mnt/deleted
wait $holder
check "deleted-is-promoted" "$(cat /run/held)" [ "$(field node0 "$(cat /run/held)")" -ge 1013 ]

# Truncated, replaced, its reader killed: nothing happens to us.
make /mnt/shrinks 8
on_slow /mnt/shrinks
guest hold /mnt/shrinks 20 > /dev/null &
holder=$!
for i in 1 2 3 4 5 6 7 8; do
    truncate -s $((8 - i))M /mnt/shrinks
    sleep 0.1
done
kill -9 $holder
wait $holder
make /mnt/new 4
mv /mnt/new /mnt/shrinks
guest loop /mnt/shrinks 3 > /run/loop
sleep 0.5
check "survives-changes" "$(cat /run/err)" kill -0 $daemon
stop
check "ends-well-after-changes" "status $status, $(cat /run/err)" [ $status = 0 ]

# A mount that only a container sees.
umount /mnt
on_slow_container() {
    unshare -m sh -c 'mount -t xfs /dev/vdb /mnt && echo 1 > /proc/sys/vm/drop_caches &&
        guest bind 1 cat /mnt/file > /dev/null && guest hold /mnt/file 30'
}
start
on_slow_container > /run/held
stop
check "container-is-promoted" "$(cat /run/held), $(tail -n 1 /run/log)" [ "$(field node0 "$(cat /run/held)")" -ge 1520 ]

# --path: only what is below it.
mount -t ext4 /dev/vda /mnt
mkdir -p /mnt/in /mnt/out
make /mnt/in/file 4
make /mnt/out/file 4
echo 1 > /proc/sys/vm/drop_caches
guest bind 1 cat /mnt/in/file /mnt/out/file > /dev/null
start --path /mnt/in
check "path-is-promoted" "$(guest where /mnt/in/file)" promoted /mnt/in/file
guest loop /mnt/out/file 10 > /run/loop
sleep 0.5
stop
check "others-are-not" "$(guest where /mnt/out/file)" [ "$(field node0 "$(guest where /mnt/out/file)")" = 0 ]
umount /mnt
