# The rate limit holds over each second, by the kernel's own count.
mount -t ext4 /dev/vda /mnt
make /mnt/file 48
on_slow /mnt/file
start --rate-limit-mbps 8
guest peak 6 > /run/peak &
peak=$!
for i in 1 2 3 4 5 6 7 8 9 10; do guest loop /mnt/file 3 > /run/loop; sleep 0.3; done
wait $peak
stop
echo "NOTE rate limit 2048 pages a second: $(cat /run/peak)"
check "rate-limit-holds" "$(cat /run/peak)" [ "$(field peak "$(cat /run/peak)")" -le 2048 ]
check "rate-limit-is-used" "$(cat /run/peak)" [ "$(field all "$(cat /run/peak)")" -ge 4096 ]
check "rate-limited-is-counted" "$(tail -n 1 /run/log)" [ "$(counter pgpromote_success)" -ge 4096 ]
umount /mnt
