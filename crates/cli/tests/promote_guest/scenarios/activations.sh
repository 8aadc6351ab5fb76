# A kernel without the event for reads: its activations tell.
uname -r
mount -t ext4 /dev/vda /mnt
make /mnt/file 24
on_slow /mnt/file
marks=$(guest flags /mnt/file)
start
check "watches-activations" "$(cat /run/err)" grep -q "mm_lru_activate" /run/err
sleep 1
check "read-once-stays" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 6144 ]
check "looking-leaves-no-marks" "$marks, $(guest flags /mnt/file)" [ "$marks" = "$(guest flags /mnt/file)" ]
check "marks-mean-something" "$marks" [ "$marks" = "referenced=6144 active=0" ]
disk=$(sectors vda)
guest hold /mnt/file 5 > /run/held
check "hot-is-promoted" "$(cat /run/held) $(tail -n 1 /run/log)" promoted /mnt/file
check "nothing-read-from-disk" "$disk, $(sectors vda)" [ "$(sectors vda)" = "$disk" ]
stop
check "clean-stop" "status $status" [ $status = 0 ]
umount /mnt
