# Text to compress: words, the common ones often, and what comes again far behind.
import random, sys

size, out = int(sys.argv[1]), open(sys.argv[2], "wb")
r = random.Random(11)
letters = "etaoinshrdlucmfwypvbgkqjxz"
words = ["".join(r.choices(letters, range(26, 0, -1), k=r.randint(2, 11))) for _ in range(30000)]
weights = [1 / (n + 3) for n in range(len(words))]
blocks, written = [], 0
while written < size:
    if len(blocks) > 8 and r.random() < 0.3:
        block = bytearray(r.choice(blocks))
        for _ in range(200):
            block[r.randrange(len(block))] = 46
    else:
        block = " ".join(r.choices(words, weights, k=40000)).encode()
        blocks.append(block)
    out.write(block[: size - written])
    written += len(block)
out.close()
