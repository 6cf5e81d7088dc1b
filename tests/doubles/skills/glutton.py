"""Takes more than its share of what it is told: memory, files, disk, processes or CPU."""

import json
import os
import sys
import time

what = json.load(sys.stdin)["of"]
if what == "memory":
    held = bytearray(4 << 30)
elif what == "disk":
    with open(os.path.join(os.environ["CUO_OUTBOX"], "big"), "wb") as file:
        while True:
            file.write(b"\0" * (1 << 20))
elif what == "files":
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(4096)]
elif what == "processes":
    for _ in range(400):
        if os.fork() == 0:
            time.sleep(60)
    time.sleep(60)
elif what == "cpu":
    while True:
        pass
