# Room for little: a file of 6 MiB that is read again and again gets it, and not the scan beside it,
# which is hot too. The made-up machine of the unit tests shows that exactly (the_hottest_come_first). Here the
# kernel takes and gives room meanwhile, and who has it then has it for good: so it is tried anew.
mount -t ext4 /dev/vda /mnt
on_fast() { field node0 "$(guest where $1)"; }
# Three quarters, and of the scan no more than a third: without a preference both would have the same share.
has_come() { [ "$(on_fast /mnt/hot)" -ge 1152 ]; }
begin() {
    rm -rf /mnt/*
    # The scan comes first in the order of files.
    make /mnt/scan 72
    make /mnt/hot 6
    on_slow /mnt/hot
    guest bind 1 cat /mnt/scan > /dev/null
    leave_room 14
    # Some twelve times as often.
    guest read /mnt/scan 1000000 131072 1200 > /dev/null &
    scan=$!
    guest read /mnt/hot 1000000 131072 100 > /dev/null &
    reader=$!
    # Ten times the budget: an instruction of the guest takes some ten times as long as elsewhere. With less the
    # daemon rests for seconds between the two halves of the hot file, and the kernel gives the room away.
    start --overhead-budget 10%
}
end() {
    kill $reader $scan
    wait $reader $scan
    give_room
    stop
}
for attempt in 1 2 3 4; do
    begin
    tries=0
    until has_come || [ $tries -ge 100 ]; do
        sleep 1
        tries=$((tries + 1))
    done
    if has_come || [ $attempt = 4 ]; then
        break
    fi
    end
done
echo "NOTE heat: attempt $attempt, $tries s, hot $(guest where /mnt/hot), scan $(guest where /mnt/scan), room $(room 0) MiB"
check "heat-comes-first" "$(guest where /mnt/hot) $(tail -n 1 /run/log)" has_come
check "heat-scan-gets-the-rest" "$(guest where /mnt/scan)" [ "$(on_fast /mnt/scan)" -lt 6144 ]
end
umount /mnt
