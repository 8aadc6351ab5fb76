# duckdb: a table in memory, a window over all of it, and groups.
import sys
import duckdb

db = duckdb.connect()
db.execute("set threads = 2; set memory_limit = '64GB'; set temp_directory = ''")
rows = int(sys.argv[1]) // 82
db.execute(f"create table t as select range i, hash(range) h, (range * 7919) % 1000003 k from range({rows})")
ordered = "select i, row_number() over (order by h) n from t"
print(db.execute(f"select sum(i * (n % 1000)) from ({ordered})").fetchone())
print(db.execute("select count(*), sum(s) from (select k, sum(i) s from t group by k)").fetchone())
