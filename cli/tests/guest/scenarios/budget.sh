# A third of the usual budget, and less than it takes to switch the events each second: what can't be
# afforded is done more rarely, not never, and a line says so.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
make /mnt/file 4
on_slow /mnt/file
start --overhead-budget 0.3%
check "budget-is-promoted" "$(guest where /mnt/file) $(tail -n 1 /run/log)" held_promoted /mnt/file
check "budget-is-said" "$(cat /run/err)" grep -q "and not in each interval" /run/err
echo "NOTE $(cat /run/err | tr '\n' ' ')"
echo "NOTE $(tail -n 1 /run/log)"
stop
check "budget-clean-stop" "status $status, $(cat /run/err)" [ $status = 0 ]
umount /mnt
