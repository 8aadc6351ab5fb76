# sqlite builds an index over a table in memory.
import json, sqlite3, sys, time

rows = int(sys.argv[1]) // 185
db = sqlite3.connect(":memory:")
db.execute("pragma temp_store = memory")
db.execute("create table t(id integer primary key, key text, rest text)")
# Keys in no order, each a function of its row.
key = "printf('%08x', value * 2654435761 % 4294967296)"
db.execute(
    "with recursive c(value) as (select 1 union all select value + 1 from c limit ?) "
    f"insert into t select value, {key}, printf('%0100d', value * 7919) from c",
    (rows,),
)
db.commit()
start = time.monotonic()
db.execute("create index by_key on t(key)")
seconds = time.monotonic() - start
if db.execute("pragma integrity_check").fetchall() != [("ok",)]:
    sys.exit("the integrity check failed")
wrong = f"select count(*) from t where key <> {key.replace('value', 'id')}"
if db.execute(wrong).fetchone() != (0,):
    sys.exit("a key is not what it was")
middle = db.execute("select id, key from t order by key limit 5 offset ?", (rows // 2,)).fetchall()
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps({"seconds": seconds, "check": str((rows, middle)), "need": int(peak) * 1024}))
