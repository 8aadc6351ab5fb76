# A hot set larger than what the fast node can take: the migrated bytes stay
# bounded.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
# Node 0 has room for so many MiB; 1.5 times as much is hot.
left=24
big=$((left * 3 / 2))
make /mnt/big $big
migrated() { awk '/pgmigrate_success/ { print $2 }' /proc/vmstat; }
for way in demote kernel; do
    on_slow /mnt/big
    leave_room $left
    before=$(migrated)
    case $way in
        demote) start --demote --window 2s ;;
        kernel)
            echo 1 > /sys/kernel/mm/numa/demotion_enabled
            start
            ;;
    esac
    # Until something was promoted, and then for two minutes more.
    tries=0
    until [ "$(counter pgpromote_success)" -gt 0 ] || [ $tries -ge 1000 ]; do
        guest read /mnt/big 5 131072 > /run/loop
        tries=$((tries + 1))
    done
    guest read /mnt/big 600 131072 200 > /run/loop
    after=$(migrated)
    echo "NOTE hot set 1.5 times the room, $way: $(cat /run/loop) $(guest where /mnt/big), migrated $((after - before)), $tries times 5 rounds before"
    stop
    echo "NOTE $way: promoted $(counter pgpromote_success), demoted $(counter pgdemote_proactive), no room $(counter no_room), backoffs $(counter backoffs)"
    check "promotes-$way" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -gt 0 ]
    # Three times what is hot. (Without backing off it is nine times in these two minutes.)
    check "bounded-$way" "$((after - before)) pages" [ $((after - before)) -le $((big * 768)) ]
done
give_room
umount /mnt
