# A hot set larger than what the fast node can take: the migrated bytes stay
# bounded.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
# Node 0 is filled but for so many MiB; 1.5 times as much is hot.
left=24
big=$((left * 3 / 2))
free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node0/meminfo)
mount -o remount,size=512m /run
guest bind 0 dd if=/dev/zero of=/run/fill bs=1M count=$((free - left)) 2> /dev/null
make /mnt/big $big
migrated() { awk '/pgmigrate_success/ { print $2 }' /proc/vmstat; }
for way in demote kernel; do
    on_slow /mnt/big
    before=$(migrated)
    case $way in
        demote) start --demote --window 2s ;;
        kernel)
            echo 1 > /sys/kernel/mm/numa/demotion_enabled
            start
            ;;
    esac
    # Until something was promoted, and then 40 rounds more.
    tries=0
    until [ "$(counter pgpromote_success)" -gt 0 ] || [ $tries -ge 1000 ]; do
        guest read /mnt/big 5 131072 > /run/loop
        tries=$((tries + 1))
    done
    guest read /mnt/big 40 131072 > /run/loop
    after=$(migrated)
    echo "NOTE hot set 1.5 times the room, $way: $(cat /run/loop) $(guest where /mnt/big), migrated $((after - before)), $tries times 5 rounds before"
    stop
    echo "NOTE $way: promoted $(counter pgpromote_success), demoted $(counter pgdemote_proactive), no room $(counter no_room), backoffs $(counter backoffs)"
    check "promotes-$way" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -gt 0 ]
    # Twice what is hot, whatever the number of rounds.
    check "bounded-$way" "$((after - before)) pages" [ $((after - before)) -le $((big * 512)) ]
done
rm /run/fill
umount /mnt
