# faiss: vectors in inverted lists, searched by two threads.
import sys, faiss, numpy as np

faiss.omp_set_num_threads(2)
columns, lists = 256, 128
r = np.random.default_rng(6)
n = int(sys.argv[1]) // (columns * 4)
base = r.standard_normal((n, columns), dtype=np.float32)
coarse = faiss.IndexFlatL2(columns)
index = faiss.IndexIVFFlat(coarse, columns, lists)
index.cp.niter = 2
index.train(base[: lists * 40])
for part in np.array_split(base, 32):
    index.add(part)
# Some are asked for far more often than others.
queries = base[(r.pareto(1.0, 400) * n / 20).astype(np.int64) % n]
del base
index.nprobe = 4
for part in np.array_split(queries, 20):
    distance, found = index.search(part, 4)
print(index.ntotal, found.shape, bool(np.isfinite(distance).all()))
