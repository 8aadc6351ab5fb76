# A hot set 1.5 times as large as what node 0 can take. Time is counted here (see guest.rs): what a
# reader takes with promotion can be compared with what it takes without.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
left=24
big=$((left * 3 / 2))
make /mnt/big $big
# From a disk: what an event costs is measured on reads of the program's own file.
cp /bin/hugeswap /mnt/hugeswap
sync
echo 3 > /proc/sys/vm/drop_caches
migrated() { awk '/pgmigrate_success/ { print $2 }' /proc/vmstat; }
PROMOTE_WAS=$PROMOTE
PROMOTE="/mnt/hugeswap promote --from 1 --to 0"
for way in off default demote; do
    on_slow /mnt/big
    leave_room $left
    before=$(migrated)
    echo "NOTE $way: hot set $big MiB, room on node 0 $(room 0) MiB"
    case $way in
        default) start ;;
        demote) start --demote --window 5s ;;
    esac
    guest read /mnt/big 1500 131072 > /run/loop
    seconds=$(field seconds "$(cat /run/loop)")
    moved=$(($(migrated) - before))
    [ $way = off ] && off=$seconds
    ratio=$(awk -v a=$seconds -v b=$off 'BEGIN { printf "%.4f", a / b }')
    echo "NOTE $way: $seconds s, $ratio of off, $moved pages migrated, $(guest where /mnt/big)"
    echo "NOTE $way: room on node 0 afterwards $(room 0) MiB"
    [ $way = off ] && continue
    check "alive-$way" "$(cat /run/err)" kill -0 $daemon
    stop
    echo "NOTE $way: promoted $(counter pgpromote_success), demoted $(counter pgdemote_proactive), no room $(counter no_room), backoffs $(counter backoffs), sampled $(counter numa_hint_page_cache)"
    echo "NOTE $way: the daemon $(counter overhead_daemon) of a processor, sampling $(counter overhead_sampling), $(tail -n 1 /run/err)"
    check "promotes-$way" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -gt 0 ]
    check "sampled-$way" "$(tail -n 1 /run/log)" [ "$(counter numa_hint_page_cache)" -gt 0 ]
    check "bounded-$way" "$moved pages" [ $moved -le $((big * 512)) ]
    check "throughput-$way" "$ratio" awk -v r=$ratio 'BEGIN { exit !(r < 1.05) }'
done
PROMOTE=$PROMOTE_WAS
give_room
umount /mnt
