# sqlite: a table and two indexes in memory, queries by range, and a check of all of it.
set -eu
exec sqlite3 :memory: "
  create table t(a integer, b text);
  with recursive c(i) as (select 1 union all select i + 1 from c where i < $1 / 87)
    insert into t select i * 2654435761 % 4294967296, hex(i * 7919) from c;
  create index by_a on t(a);
  create index by_b on t(b);
  select count(*), sum(a) from t where a between 1000000 and 900000000;
  select max(b) from t where b > 'A';
  pragma quick_check;"
