# workers: four processes, each with a dictionary of its own, looked up at random.
import random, sys
from multiprocessing import Pool

WORKERS = 4
n = int(sys.argv[1]) // WORKERS // 265


def work(worker):
    d = {(i * WORKERS + worker) * 2654435761 % (1 << 32): (i, str(i)) for i in range(n)}
    keys, r = list(d), random.Random(worker)
    return len(d), sum(d[keys[r.randrange(n)]][0] for _ in range(n * 2))


with Pool(WORKERS) as pool:
    print(*pool.map(work, range(WORKERS), chunksize=1))
