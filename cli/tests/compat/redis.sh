# redis.sh MANAGER: a data set of three times the limit is loaded, saved in the background while it
# is written to, and read back by a second server. Says what must be the same every time.
set -eu
hs=$1
sock=$PWD/redis.sock
cli="redis-cli -s $sock"
serve() {
  $hs redis-server --port 0 --unixsocket "$sock" --dir "$PWD" --save '' --loglevel warning \
    --enable-debug-command local >>server.log 2>&1 &
  server=$!
  for _ in $(seq 200); do $cli ping >/dev/null 2>&1 && return; sleep 0.1; done
  cat server.log; exit 1
}
stop() { $cli shutdown nosave >/dev/null 2>&1 || true; wait $server || { cat server.log; exit 1; }; }
serve
$cli debug populate 240000 key 1024
echo "digest after loading: $($cli debug digest)"
redis-benchmark -s "$sock" -q -t set,get -n 20000 -r 100000 -d 512 >bench.log 2>&1 &
bench=$!
$cli bgsave >/dev/null
for _ in $(seq 1200); do
  [ "$($cli info persistence | tr -d '\r' | sed -n 's/^rdb_bgsave_in_progress://p')" = 0 ] && break
  sleep 0.1
done
echo "background save: $($cli info persistence | tr -d '\r' | sed -n 's/^rdb_last_bgsave_status://p')"
wait $bench
grep -c 'requests per second' bench.log
$cli --no-auth-warning del key:__rand_int__ >/dev/null
before=$($cli debug digest)
$cli save
stop
serve
[ "$($cli debug digest)" = "$before" ] && echo "digest after reloading: the same"
echo "keys of the set: $($cli --scan --pattern 'key:[0-9]*' | wc -l | awk '{print ($1 >= 240000)}')"
stop
