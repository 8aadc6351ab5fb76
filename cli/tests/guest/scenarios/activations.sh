# A kernel without the event for reads: its activations tell.
uname -r
# By the host's clock, so it must not matter how fast the host is.
PROMOTE="$PROMOTE --interval 200ms --overhead-budget 100%"
mount -t ext4 /dev/vda /mnt
make /mnt/file 12
on_slow /mnt/file
marks=$(guest flags /mnt/file)
start
check "watches-activations" "$(cat /run/err)" grep -q "mm_lru_activate" /run/err
sleep 1
check "read-once-stays" "$(guest where /mnt/file)" [ "$(field node1 "$(guest where /mnt/file)")" = 3072 ]
check "looking-leaves-no-marks" "$marks, $(guest flags /mnt/file)" [ "$marks" = "$(guest flags /mnt/file)" ]
check "marks-mean-something" "$marks" [ "$marks" = "referenced=3072 active=0" ]
disk=$(sectors vda)
guest hold /mnt/file 5 > /run/held
check "hot-is-promoted" "$(cat /run/held) $(tail -n 1 /run/log)" promoted /mnt/file
check "nothing-read-from-disk" "$disk, $(sectors vda)" [ "$(sectors vda)" = "$disk" ]
# tmpfs too: the event for reads knows nothing of it, activations do.
guest bind 1 guest make /run/file 8
guest loop /run/file 2 > /run/loop
check "tmpfs-is-promoted" "$(tail -n 1 /run/log)" held_promoted /run/file
stop
check "clean-stop" "status $status" [ $status = 0 ]
umount /mnt
