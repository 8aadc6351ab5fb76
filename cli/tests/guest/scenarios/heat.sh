# Room for little: a file of 6 MiB that is read again and again gets it, and not the scan beside it,
# which is hot too.
mount -t ext4 /dev/vda /mnt
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
start
on_fast() { field node0 "$(guest where $1)"; }
# Nine tenths: of what is seen seldom the last blocks may come too late.
tries=0
until [ "$(on_fast /mnt/hot)" -ge 1382 ] || [ $tries -ge 600 ]; do
    sleep 1
    tries=$((tries + 1))
done
echo "NOTE heat: $tries s, hot $(guest where /mnt/hot), scan $(guest where /mnt/scan), room $(room 0) MiB"
check "heat-comes-first" "$(guest where /mnt/hot) $(tail -n 1 /run/log)" [ "$(on_fast /mnt/hot)" -ge 1382 ]
check "heat-scan-gets-the-rest" "$(guest where /mnt/scan)" [ "$(on_fast /mnt/scan)" -lt 3600 ]
kill $reader $scan
wait $reader $scan
give_room
stop
umount /mnt
