# faiss: a vector index (HNSW), searched by two threads.
import sys, faiss, numpy as np

faiss.omp_set_num_threads(2)
columns = 384
base = np.random.default_rng(6).standard_normal((int(sys.argv[1]) // 3500, columns), dtype=np.float32)
index = faiss.IndexHNSWFlat(columns, 12)
index.hnsw.efConstruction = 16
index.add(base)
queries = base[::5] + np.float32(0.01)
del base
index.hnsw.efSearch = 12
for _ in range(3):
    distance, found = index.search(queries, 4)
print(index.ntotal, found.shape, bool(np.isfinite(distance).all()))
