# The nodes come from the kernel's memory tiers.
mount -t ext4 /dev/vda /mnt
make /mnt/file 8
on_slow /mnt/file
PROMOTE_WAS=$PROMOTE
PROMOTE="hugeswap promote"
start
check "tiers-promote" "$(guest where /mnt/file)" promoted /mnt/file
check "tiers-are-found" "$(cat /run/err)" grep -q "node 1 to node 0" /run/err
stop
PROMOTE=$PROMOTE_WAS
umount /mnt
