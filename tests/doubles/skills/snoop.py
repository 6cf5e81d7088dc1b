"""Curious: reports all it can see of its surroundings, as JSON."""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

arguments = json.load(sys.stdin)
others = []
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) != os.getpid():
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            if arguments.get("secret", "\0").encode() in file.read():
                others.append(int(entry))
network = "closed"
with contextlib.suppress(OSError):
    socket.create_connection(("127.0.0.1", arguments.get("port", 9)), timeout=2).close()
    network = "open"
wrote = {}
for name, path in arguments.get("paths", {}).items():
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("here")
        wrote[name] = True
    except OSError:
        wrote[name] = False
seen = {name: os.path.exists(path) for name, path in arguments.get("look", {}).items()}
descriptors = []
for number in range(3, 64):
    with contextlib.suppress(OSError):
        os.fstat(number)
        descriptors.append(number)
report = {
    "environment": dict(os.environ),
    "descriptors": descriptors,
    "session_leader": os.getsid(0) == os.getpid(),
    "secret_in": others,
    "processes": sum(entry.isdigit() for entry in os.listdir("/proc")),
    "network": network,
    "wrote": wrote,
    "seen": seen,
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "argv": sys.argv[1:],
}
json.dump(report, sys.stdout)
