# Clear messages.
says() {
    name=$1 text=$2
    shift 2
    "$@" > /run/out 2> /run/err
    status=$?
    check "$name" "status $status: $(cat /run/out /run/err)" \
        sh -c "[ $status = 1 ] && grep -q '$text' /run/err && [ \$(wc -l < /run/err) = 1 ]"
}
says "no-such-node" "there is no node 9" hugeswap promote --from 9 --to 0
says "same-node" "named both" hugeswap promote --from 0 --to 0
echo "nobody:x:65534:65534::/:/bin/sh" > /etc/passwd
says "no-permission" "as root" su nobody -c "hugeswap promote --from 1 --to 0"
says "no-such-path" "path /nowhere" hugeswap promote --from 1 --to 0 --path /nowhere
says "root-without-rights" "can.t watch reads: .*not permitted" guest powerless hugeswap promote --from 1 --to 0
says "no-trace-events" "can.t watch reads: this kernel has no trace events" guest untraced hugeswap promote --from 1 --to 0
