# postgres.sh MANAGER: pgbench by four clients; the sums of all accounts, tellers, branches and of the
# history must agree afterwards, also after a restart.
set -eu
hs=$1
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
sock=$PWD
PATH=$bin:$PATH
initdb -D data -A trust --no-sync >/dev/null
serve() {
  $hs postgres -D data -k "$sock" -c listen_addresses= -c shared_buffers=32MB -c work_mem=64MB \
    -c fsync=off >>server.log 2>&1 &
  server=$!
  for _ in $(seq 300); do pg_isready -q -h "$sock" && return; sleep 0.1; done
  cat server.log; exit 1
}
stop() { pg_ctl -D data stop -m fast >/dev/null; wait $server || { cat server.log; exit 1; }; }
ask() { psql -h "$sock" -d postgres -Atc "$1"; }
sums="select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
  and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
  and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)"
serve
pgbench -h "$sock" -i -q -s 4 postgres >/dev/null 2>&1
pgbench -h "$sock" -c 4 -j 2 -t 500 postgres >bench.log 2>&1 || { cat bench.log server.log; exit 1; }
grep 'actually processed' bench.log
echo "sums agree: $(ask "$sums")"
# A sort and a hash that need much more memory than the limit leaves.
echo "sorted: $(ask "set work_mem='512MB'; select count(*), sum(n) from (select n from generate_series(1, 2000000) n order by n desc) t" | tail -1)"
stop
serve
echo "sums agree after a restart: $(ask "$sums")"
stop
