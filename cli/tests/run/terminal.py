"""An interactive shell on a terminal of its own, and runs of hugeswap as its jobs.

Each step waits for what must be seen. The arguments are the command and an empty directory."""
import os, pty, re, select, signal, sys, time

RUN = sys.argv[1] + " run --memory 64M --swap ram -- "
PROMPT = "SHELL> "
SHELL = ["bash", "--norc", "--noprofile", "-i"]

pid, terminal = pty.fork()
if pid == 0:
    # Who started the tests may ignore what the keys send.
    for key in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(key, signal.SIG_DFL)
    os.environ.update(PS1=PROMPT, TERM="dumb", HISTFILE="/dev/null")
    os.execvp(SHELL[0], SHELL)
seen, at = "", 0


def see(pattern):
    global seen, at
    deadline = time.monotonic() + 60
    while not (match := re.search(pattern, seen[at:], re.DOTALL)):
        if time.monotonic() > deadline:
            sys.exit(f"not seen: {pattern}\n{seen}")
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 1 << 16).decode()
    at += match.end()


def type_(text):
    os.write(terminal, text.encode())


def line(text, *patterns):
    """Types a command, and sees this and the prompt again."""
    type_(text + "\n")
    for pattern in (*patterns, PROMPT):
        see(pattern)


see(PROMPT)

# Stops and goes on, in the background and again in front.
program = sys.argv[2] + "/program.py"
with open(program, "w") as file:
    file.write("""import signal, time
signal.signal(signal.SIGCONT, lambda *_: print("goes on", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
""")
type_(RUN + "python3 " + program + "\n")
see("ready")
for _ in range(40):
    type_("\x1a")
    see("Stopped.*?" + PROMPT)
    type_("fg\n")
    see("goes on")
type_("\x1a")
see("Stopped.*?" + PROMPT)
line("jobs -l", "Stopped")
type_("bg\n")
see("goes on")
line("jobs", "Running")
line("kill -INT %1; wait %1; echo status $?", "status 130\r")

# Who reads, and is not in front, stops.
line(RUN + "cat &")
while True:
    line("jobs", r"\[1\]")
    if "Stopped" in seen[seen.rindex("[1]"):]:
        break
type_("fg\n")
see("cat")
type_("text\n")
see("text.*text")
type_("\x04")
see(PROMPT)
line("echo status $?", "status 0\r")

# What the keys send ends the run as it would end the program.
for key, status in ("\x03", 130), ("\x1c", 131):
    type_(RUN + "sh -c 'echo rea\"\"dy; exec sleep 60'\n")
    see("ready")
    type_(key)
    see(PROMPT)
    line("echo status $?", f"status {status}\r")

# A shell in there has jobs of its own.
type_(RUN + "env PS1='IN''SIDE> ' " + " ".join(SHELL) + "\n")
see("INSIDE> ")
type_("sh -c 'echo rea\"\"dy; exec sleep 60'\n")
see("ready")
type_("\x1a")
see("Stopped.*?INSIDE> ")
type_("kill -KILL %1; while jobs | grep -q Stopped; do :; done; exit\n")
see(PROMPT)

# A terminal in a terminal.
line(RUN + "script -qc 'tty; exit 3' /dev/null", "/dev/pts/")

# Who hangs up ends what runs there.
type_(RUN + "sh -c 'echo pid $$; exec sleep 60'\n")
see(r"pid \d+\r")
number = re.findall(r"pid (\d+)\r", seen)[-1]
os.close(terminal)
os.waitpid(pid, 0)
deadline = time.monotonic() + 60
while os.path.exists("/proc/" + number):
    if time.monotonic() > deadline:
        sys.exit("the program has outlived its terminal")
    time.sleep(0.01)
print("ok")
