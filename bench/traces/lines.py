# Long lines in no order, for sort(1).
import random, sys

r = random.Random(3)
for _ in range(int(sys.argv[1]) // 800):
    print("%025x %s" % (r.getrandbits(100), ("field%d " % r.getrandbits(20)) * 60))
