#!/usr/bin/env bash
# Cargo's runner for ./test: becomes the test's program, and watches it. Who has not written a line for so long hangs.
# Then it says what every process of the test waits for, and ends those that the test has started: that test fails
# then, and the others have their turn.
#
#   tools/watch.sh PROGRAM [ARGUMENT...]
#
# So long is HUGESWAP_TEST_SECONDS [900]. It is said in the file HUGESWAP_TEST_HUNG, if that is given.
set -u

limit=${HUGESWAP_TEST_SECONDS:-900}
say=${HUGESWAP_TEST_HUNG:-/dev/null}

# The processes below $1, those that it started itself first.
below() {
    local child
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
        echo "$child"
        below "$child"
    done
}

# Where in which file the address $2 of process $1 is.
place() {
    local range offset name
    while read -r range _ offset _ _ name; do
        if (($2 >= 0x${range%-*} && $2 < 0x${range#*-})); then
            printf '%s+%#x' "${name##*/}" $(($2 - 0x${range%-*} + 0x$offset))
        fi
    done < <(grep ' r-xp .*/' "/proc/$1/maps")
}

# One line for each thread: the system call with its arguments, from where, and where in the kernel.
state() {
    local thread call
    echo "-- $1: $(tr '\0' ' ' <"/proc/$1/cmdline" | cut -c 1-100)"
    for thread in "/proc/$1/task/"*; do
        read -ra call <"$thread/syscall"
        echo "${thread##*/} $(<"$thread/comm") $(sed -n 's/^State:\t\(.\).*/\1/p' "$thread/status")" \
            "${call[*]:0:4} $(place "$1" "${call[-1]/running/0}")" \
            "$(sed 's/^[^ ]* //; s/+.*//; 4q' "$thread/stack" | tr '\n' ' ')"
    done
} 2>/dev/null

# Nothing when the process has ended: its parent may wait for it later.
written() {
    grep -qs '^State:.[^ZX]' "/proc/$1/status" && sed -n 's/^wchar: //p' "/proc/$1/io" 2>/dev/null
}

# Returns when process $1 has ended.
watch() {
    local before=none now since=$SECONDS child killed=
    while now=$(written "$1") && [ -n "$now" ]; do
        if [ "$now" != "$before" ]; then
            before=$now since=$SECONDS killed=
        elif ((SECONDS - since >= limit)); then
            if [ -n "$killed" ]; then
                kill -ABRT "$1"
                return
            fi
            {
                echo "watch: nothing has come for $limit s"
                for child in "$1" $(below "$1"); do state "$child"; done
            } >>"$say"
            # shellcheck disable=SC2046
            kill -KILL $(below "$1") 2>/dev/null
            # It has a while to fail.
            killed=1 since=$((SECONDS - limit + 30))
        fi
        sleep 2
    done
}

# Not as a child of the test's, which may wait for any; nor does anybody wait for it at the end of a pipe.
(watch $$ </dev/null >/dev/null 2>&1 &)
exec "$@"
