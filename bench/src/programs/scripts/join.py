# polars: a join, groups and a sort.
import sys
import numpy as np, polars as pl

n = int(sys.argv[1]) // 160
r = np.random.default_rng(7)
left = pl.DataFrame({"k": r.integers(0, n // 4, n), "v": r.random(n), "w": r.integers(0, 100, n)})
right = pl.DataFrame({"k": np.arange(n // 4), "z": r.random(n // 4)})
joined = left.join(right, on="k").with_columns((pl.col("v") * pl.col("z")).alias("p"))
groups = joined.group_by("k").agg(pl.col("p").sum(), pl.col("w").max()).sort("k")
by_p = joined.sort("p")
print(groups.height, round(float(groups["p"].sum()), 3), int(groups["w"].sum()), round(float(by_p["p"][n // 2]), 12))
