# Room for little: a file of 6 MiB that is read again and again gets it, and not the scan beside it,
# which is hot too.
# With the budget and the interval that everybody has.
PROMOTE_WAS=$PROMOTE
PROMOTE="hugeswap promote --from 1 --to 0"
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
make /mnt/hot 6
make /mnt/scan 72
# What a node can take: its free pages above twice the high watermarks.
room() {
    awk -v node=$1 '$1 == "Node" { sub(",", "", $2); here = $2 == node }
        here && $2 == "free" { sum += $3 }
        here && $1 == "high" { sum -= 2 * $2 }
        END { print int(sum / 256) }' /proc/zoneinfo
}
on_slow /mnt/hot
guest bind 1 cat /mnt/scan > /dev/null
rm -f /run/filled
guest bind 0 guest fill $(($(room 0) - 14)) > /run/filled &
filler=$!
until [ -s /run/filled ]; do sleep 0.1; done
guest read /mnt/scan 1000000 131072 > /dev/null &
scan=$!
guest read /mnt/hot 1000000 131072 > /dev/null &
reader=$!
start
on_fast() { field node0 "$(guest where $1)"; }
tries=0
until [ "$(on_fast /mnt/hot)" -ge 1520 ] || [ $tries -ge 600 ]; do
    sleep 1
    tries=$((tries + 1))
done
echo "NOTE heat: $tries s, hot $(guest where /mnt/hot), scan $(guest where /mnt/scan), room $(room 0) MiB"
check "heat-comes-first" "$(guest where /mnt/hot) $(tail -n 1 /run/log)" [ "$(on_fast /mnt/hot)" -ge 1520 ]
check "heat-scan-gets-the-rest" "$(guest where /mnt/scan)" [ "$(on_fast /mnt/scan)" -lt 3600 ]
kill $reader $scan $filler
wait $reader $scan $filler
stop
umount /mnt
PROMOTE=$PROMOTE_WAS
