# sqlite.sh MANAGER: a table in memory with an index, changed and checked.
set -eu
$1 sqlite3 :memory: <<'Q'
create table t(n integer primary key, text, other);
with recursive c(n) as (select 1 union all select n + 1 from c where n < 600000)
  insert into t select n, printf('%064d', n * 7919 % 600000), n % 1000 from c;
create index i on t(text);
delete from t where other = 7;
update t set text = text || 'x' where other = 8;
select count(*), sum(n), max(text), min(text) from t;
pragma integrity_check;
Q
