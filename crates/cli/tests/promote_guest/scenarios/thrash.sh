# A hot set larger than the fast node: the migrated bytes stay bounded and the
# reader is not held up.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
make /mnt/big ${BIG_MB:-300}
read_all() { guest loop /mnt/big 6; }
for way in off on demote kernel; do
    on_slow /mnt/big
    before=$(awk '/pgmigrate_success/ { print $2 }' /proc/vmstat)
    case $way in
        on) start ;;
        demote) start --demote --window 2s ;;
        kernel) echo 1 > /sys/kernel/mm/numa/demotion_enabled; start ;;
    esac
    read_all > /run/loop
    echo "NOTE hot set larger than node 0, $way: $(cat /run/loop) $(guest where /mnt/big)"
    after=$(awk '/pgmigrate_success/ { print $2 }' /proc/vmstat)
    if [ $way != off ]; then
        echo "NOTE $way: migrated $((after - before)) pages, promoted $(counter pgpromote_success), demoted $(counter pgdemote_proactive), backoffs $(counter backoffs)"
        stop
        # No more than node 0 and its contents once over.
        check "bounded-$way" "$((after - before)) pages" [ $((after - before)) -le 163840 ]
    fi
done
umount /mnt
