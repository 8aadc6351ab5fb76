# Programs on less memory than they need.
mount -t ext4 /dev/vda /mnt
hugeswap-difftest --no-shrink --without direct,uring,splice,vm-readv --seed 7 --sequences 30 \
    --data 160 --timeout 300 --dir /mnt -- \
    hugeswap run --memory 64M --swap /mnt --swap-size 256M --stats-json /run/stats -- \
    > /run/log 2> /run/err
status=$?
check run-is-right "it ended with $status" [ $status = 0 ]
said=$(hugeswap run --memory 64M --swap ram -- hugeswap --version 2>&1 | grep AES)
check run-encrypts "$said" [ -z "$said" ]
of_run() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" /run/stats; }
out=$(of_run pswpout) peak=$(of_run peak_resident_bytes)
check run-swaps "$out pages out" [ "${out:-0}" -gt 1000 ]
# Two folios more: one that is copied, and one of a child.
check run-keeps-its-limit "$peak bytes" [ "${peak:-0}" -le $((68 << 20)) ]
umount /mnt
