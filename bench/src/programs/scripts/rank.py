# numpy: sorts the edges of a graph by counting, then five rounds of PageRank.
import numpy as np, sys

edges = int(sys.argv[1]) // 42
nodes = edges // 8
r = np.random.default_rng(9)
source = (r.pareto(1.2, edges) * 1000).astype(np.int64) % nodes
target = r.integers(0, nodes, edges, dtype=np.int64)
order = np.argsort(source, kind="stable")
source, target = source[order], target[order]
del order
degree = np.bincount(source, minlength=nodes)
rank = np.full(nodes, 1 / nodes)
for _ in range(5):
    share = rank / np.maximum(degree, 1)
    rank = 0.15 / nodes + 0.85 * np.bincount(target, weights=share[source], minlength=nodes)
print(nodes, edges, int(target[::1000].sum()), round(float(rank.max()), 12))
