# The rate limit holds over each second, by the kernel's own count.
mount -t ext4 /dev/vda /mnt
make /mnt/file 12
on_slow /mnt/file
start --rate-limit-mbps 4
touch /run/go
guest peak /run/go > /run/peak &
peak=$!
# Three seconds' worth.
check "rate-is-promoted" "$(guest where /mnt/file)" promoted /mnt/file
rm /run/go
wait $peak
stop
echo "NOTE rate limit 1024 pages a second: $(cat /run/peak)"
check "rate-limit-holds" "$(cat /run/peak)" [ "$(field peak "$(cat /run/peak)")" -le 1024 ]
check "rate-all-was-migrated" "$(cat /run/peak)" [ "$(field all "$(cat /run/peak)")" -ge 3040 ]
check "rate-limited-is-counted" "$(tail -n 1 /run/log)" [ "$(counter rate_limited)" -gt 0 ]
umount /mnt
