"""Children of all kinds, with much memory swapped out."""
import os, subprocess, sys, time
data = bytearray(os.urandom(1 << 20)) * 150
want = hash(bytes(data))
print("system", os.system("exit 3") >> 8)
print("popen", os.popen("echo hello").read().strip())
print("spawn", os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ), 0)[1]))
print("subprocess", subprocess.run(["cat"], input=data[:100000], stdout=subprocess.PIPE).stdout == data[:100000])
r, w = os.pipe()
if os.fork() == 0:
    # As daemon(3): twice, with a session of its own; the parent is gone at once.
    os.setsid()
    if os.fork() == 0:
        os.close(r)
        time.sleep(0.3)
        os.write(w, b"daemon %s" % (b"right" if hash(bytes(data)) == want else b"wrong"))
    os._exit(0)
os.close(w)
os.wait()
print(os.fdopen(r).read())
for i in range(20):
    pid = os.fork()
    if pid == 0:
        data[i << 20] ^= 1
        os._exit(0 if data[i << 20] != data[(i << 20) + (1 << 20)] else 5)
    assert os.waitpid(pid, 0)[1] == 0
print("parent", hash(bytes(data)) == want)
