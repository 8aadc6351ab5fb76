# numpy: k-means by samples that are gathered at random, then all points in order.
import numpy as np, sys

r, columns, k = np.random.default_rng(3), 64, 16
points = np.empty((int(sys.argv[1]) * 9 // 10 // 4 // columns, columns), np.float32)
for part in np.array_split(points, 64):
    part[:] = r.standard_normal(part.shape, np.float32)
centres, seen = points[:k].copy(), np.ones(k)


def nearest(x):
    return np.argmin((centres * centres).sum(1) - 2 * (x @ centres.T), 1)


for _ in range(30):
    sample = points[r.integers(0, len(points), len(points) // 100)]
    which = nearest(sample)
    for c in range(k):
        own = sample[which == c]
        seen[c] += len(own)
        centres[c] += (own - centres[c]).sum(0) / seen[c]
counts = sum(np.bincount(nearest(part), minlength=k) for part in np.array_split(points, 64))
print(len(points), counts.tolist())
