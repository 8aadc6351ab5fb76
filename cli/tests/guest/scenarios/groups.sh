# Memory groups of version 2, as systemd and containers have them.
mount -t ext4 /dev/vda /mnt
groups=/sys/fs/cgroup
mount -t cgroup2 none $groups
echo +memory > $groups/cgroup.subtree_control
mkdir $groups/above
echo +memory > $groups/above/cgroup.subtree_control
mkdir $groups/above/own

limits() {
    echo $1 > $groups/above/memory.max
    echo $2 > $groups/above/own/memory.max
}
in_group() { (
    echo 0 > $groups/above/own/cgroup.procs
    exec "$@"
); }
kills() { sed -n 's/^oom_kill //p' $groups/above/memory.events; }
out() { sed -n 's/.*"pswpout": *\([0-9]*\).*/\1/p' /run/stats; }
# run NAME ARGUMENTS...: it must end well, have swapped, and nobody may have been killed.
run() {
    this=$1
    shift
    killed=$(kills)
    rm -f /run/stats
    "$@" > /run/log 2> /run/err
    status=$?
    check $this-is-met "status $status, $(out) pages out" [ "$status ok" = "0 $(tail -n 1 /run/log)" -a "$(out)" -gt 1000 ]
    check $this-kills-nobody "$killed before, $(kills) now" [ "$(kills)" = "$killed" ]
}
hugeswap="hugeswap run --verbose --swap /mnt --swap-size 320M --stats-json /run/stats"

# The tighter one counts, and that is the one above.
limits 144M 400M
in_group hugeswap doctor --swap /mnt > /run/log 2> /run/err
check doctor-names-the-group-above "$(cat /run/log)" grep -q "memory group  *v2, 144M, of which" /run/log
run above in_group $hugeswap -- hog 200
check above-is-said "$(cat /run/err)" grep -q "memory group's limit of 144M leaves" /run/err

# In a container nothing above is seen.
limits max 120M
run contained guest contained $groups/above/own $hugeswap -- hog 160
check contained-is-said "$(cat /run/err)" grep -q "memory group's limit of 120M leaves" /run/err

# 16 MiB beside the limit are enough, whatever can't be swapped, and for many processes.
limits max 128M
touch /run/go
run small-group in_group $hugeswap --memory 112M -- stacks 112 /run/go
all="for i in 1 2 3 4 5 6 7 8 9 10 11 12; do hog 16 & all=\"\$all \$!\"; done; for p in \$all; do wait \$p || exit 1; done"
limits max 96M
run small-group-of-many in_group $hugeswap --memory 80M -- dash -c "$all"

limits 40M max
in_group $hugeswap -- hog 10 > /run/log 2> /run/err
status=$?
check too-small-is-refused "status $status: $(cat /run/err)" [ $status = 2 ]
rmdir $groups/above/own $groups/above
check groups-are-empty "$(ls $groups)" [ ! -d $groups/above ]
umount $groups /mnt
