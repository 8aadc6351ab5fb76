# Two sockets: what is read on a processor goes to the fast node that is nearest to it.
mount -t ext4 /dev/vda /mnt
rm -rf /mnt/*
PROMOTE_WAS=$PROMOTE
PROMOTE="hugeswap promote"
for node in 0 1; do
    make /mnt/file$node 6
    sync
    echo 1 > /proc/sys/vm/drop_caches
    guest bind 2 cat /mnt/file$node > /dev/null
    check "socket-$node-begins-slow" "$(guest where /mnt/file$node)" \
        [ "$(field node2 "$(guest where /mnt/file$node)")" = 1536 ]
    start
    # Processor N is node N's only one.
    tries=0
    until [ "$(field node2 "$(guest where /mnt/file$node)")" -le 15 ] || [ $tries -ge 200 ]; do
        taskset -c $node guest read /mnt/file$node 5 131072 100 > /dev/null
        tries=$((tries + 1))
    done
    seen=$(guest where /mnt/file$node)
    echo "NOTE read on node $node: $seen after $((tries * 5)) reads, $(cat /run/err)"
    check "socket-$node-is-promoted-there" "$seen $(tail -n 1 /run/log)" [ "$(field node$node "$seen")" -ge 1521 ]
    stop
done
PROMOTE=$PROMOTE_WAS
umount /mnt
