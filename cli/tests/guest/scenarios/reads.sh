# Files that are only read come back; what is read once, or without us, stays.
uname -r
mount -t ext4 /dev/vda /mnt
make /mnt/file 16
on_slow /mnt/file
before=$(guest where /mnt/file)
guest loop /mnt/file 5 > /run/loop
sum=$(field sum "$(cat /run/loop)")
check "off-nothing-moves" "$before, $(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 4096 ]

on_slow /mnt/file
start
rights=$(awk '/^Cap(Prm|Eff|Bnd)/ { print $2 }' /proc/$daemon/status | sort -u)
# Files of others by handle, times of access, descriptors of others, tracefs, others' pages, events.
check "rights-are-few" "$rights" [ "$rights" = 0000004000a8000c ]
cat /mnt/file > /dev/null
sleep 1
check "read-once-stays" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 4096 ]

disk=$(sectors vda)
check "hot-is-promoted" "$(guest where /mnt/file)" promoted /mnt/file
echo "NOTE ext4: all on node 0 after $((rounds * 5)) reads"
check "nothing-read-from-disk" "$disk, $(sectors vda)" [ "$(sectors vda)" = "$disk" ]
check "contents-are-the-same" "$(cat /run/loop)" [ "$(field sum "$(cat /run/loop)")" = "$sum" ]
sleep 0.5
stop
check "clean-stop" "status $status" [ $status = 0 ]
check "counters" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -ge 4060 ]
check "no-disk-reads-by-us" "$(counter disk_reads)" [ "$(counter disk_reads)" = 0 ]

# Looking leaves the marks of age as they are.
on_slow /mnt/file
marks=$(guest flags /mnt/file)
start --observe --window 10s
guest loop /mnt/file 1 > /run/loop
loop=$(guest flags /mnt/file)
# The marks of a page do not change after the second read, so it does not matter how many there are.
tries=0
until [ "$(counter pgpromote_candidate)" -gt 0 ] || [ $tries -ge 1000 ]; do
    guest loop /mnt/file 2 > /run/loop
    tries=$((tries + 1))
done
loops=$(guest flags /mnt/file)
looked=$(counter pgpromote_candidate)
stop
on_slow /mnt/file
guest loop /mnt/file 9 > /run/loop
check "looking-leaves-no-marks" "$marks, $loop, $loops; without us $(guest flags /mnt/file)" [ "$loops" = "$(guest flags /mnt/file)" ]
check "observe-moves-nothing" "$(guest where /mnt/file)" [ "$(field node0 "$(guest where /mnt/file)")" = 0 ]
check "observe-looks" "$looked candidates" [ "$looked" -gt 0 ]

# --once: watches once, moves what is hot then, and ends by itself.
on_slow /mnt/file
guest read /mnt/file 1000000 131072 > /dev/null &
reader=$!
$PROMOTE --once --json > /run/log 2> /run/err
status=$?
kill $reader
wait $reader
check "once-promotes" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -gt 0 ]
check "once-ends-well" "status $status, $(cat /run/err)" [ $status = 0 ]
umount /mnt
