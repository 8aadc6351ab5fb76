# python: a dictionary of tuples and strings, looked up at random.
import random, sys

n = int(sys.argv[1]) // 265
d = {i * 2654435761 % (1 << 32): (i, str(i)) for i in range(n)}
keys, r = list(d), random.Random(5)
print(len(d), sum(d[keys[r.randrange(n)]][0] for _ in range(n // 10)))
