# numpy sorts random numbers, and checks that they are the same ones, in order.
import json, sys, time
import numpy as np

n = int(sys.argv[1]) // 8
step = 1 << 20
parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
random = np.random.default_rng(1)
a = np.empty(n, dtype=np.uint64)
for p in parts:
    a[p] = random.integers(0, 1 << 63, size=p.stop - p.start, dtype=np.uint64)


def sums():
    # Sorting changes neither: what is lost, doubled or altered shows in one of them.
    total = mixed = np.uint64(0)
    with np.errstate(over="ignore"):
        for p in parts:
            total += a[p].sum(dtype=np.uint64)
            mixed += (a[p] * (a[p] | np.uint64(1))).sum(dtype=np.uint64)
    return int(total), int(mixed)


before = sums()
start = time.monotonic()
a.sort()
seconds = time.monotonic() - start
ordered = all((a[p][:-1] <= a[p][1:]).all() for p in parts)
ordered &= all(a[p.start - 1] <= a[p.start] for p in parts[1:])
if not ordered or sums() != before:
    sys.exit("the result is not the sorted input")
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps({"seconds": seconds, "check": str(before), "need": int(peak) * 1024}))
