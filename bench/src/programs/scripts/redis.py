# redis: values of 1000 bytes, half of them random, and gets at random by one client, each checked.
import os, random, socket, subprocess, sys, time

size, directory = int(sys.argv[1]), sys.argv[2]
keys = size // 1250
noise = random.Random(1).randbytes(1 << 20)
path = os.path.join(directory, "redis.socket")


def value(key):
    at = key * 7919 % ((1 << 20) - 500)
    return noise[at : at + 500] + b"%050d" % key * 10


server = subprocess.Popen(
    ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    + ["--dir", directory],
    stdout=subprocess.DEVNULL,
)
client = socket.socket(socket.AF_UNIX)
while True:
    try:
        client.connect(path)
        break
    except OSError:
        if server.poll() is not None:
            sys.exit("redis-server ended")
        time.sleep(0.01)
answers = client.makefile("rb")
for first in range(0, keys, 256):
    batch = range(first, min(first + 256, keys))
    sets = (b"*3\r\n$3\r\nSET\r\n$12\r\nkey:%08d\r\n$1000\r\n%b\r\n" % (k, value(k)) for k in batch)
    client.sendall(b"".join(sets))
    for _ in batch:
        if answers.readline() != b"+OK\r\n":
            sys.exit("redis refused a value")
chosen = random.Random(5)
for _ in range(keys // 3):
    key = chosen.randrange(keys)
    client.sendall(b"*2\r\n$3\r\nGET\r\n$12\r\nkey:%08d\r\n" % key)
    if answers.readline() != b"$1000\r\n" or answers.read(1002)[:1000] != value(key):
        sys.exit("redis gave another value")
client.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
server.wait()
print(keys, "keys")
