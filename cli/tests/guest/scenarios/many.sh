# Many processors, of which one reads.
check "many-are-there" "$(nproc) processors" [ "$(nproc)" -ge 32 ]
mount -t ext4 /dev/vda /mnt
make /mnt/file 4
guest loop /mnt/file 1 > /run/loop
sum=$(field sum "$(cat /run/loop)")
on_slow /mnt/file
start
cat /mnt/file > /dev/null
sleep 3
check "many-read-once-stays" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 1024 ]
check "many-is-promoted" "$(guest where /mnt/file) $(tail -n 1 /run/log)" held_promoted /mnt/file
echo "NOTE $(cat /run/err | tr '\n' ' ')"
echo "NOTE $(tail -n 1 /run/log)"
check "many-few-are-watched" "$(counter processors_watched)" [ "$(counter processors_watched)" -le 8 ]
guest loop /mnt/file 1 > /run/loop
check "many-contents-are-the-same" "$(cat /run/loop)" [ "$(field sum "$(cat /run/loop)")" = "$sum" ]
stop
check "many-clean-stop" "status $status, $(cat /run/err)" [ $status = 0 ]
umount /mnt
