"""Leaves a child that hides as well as it can and writes to the outbox a second later.

The child has its own session, a parent that is gone, an empty environment, ignores every
signal that may be ignored, and lets go of or keeps the inherited streams as told.
"""

import json
import os
import sys
import time

arguments = json.load(sys.stdin)
late = os.path.join(os.environ["CUO_OUTBOX"], "late")
CHILD = f"""
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
open({late!r} + ".started", "w").close()
time.sleep(1)
open({late!r}, "w").close()
time.sleep(30)
"""
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    if arguments.get("streams") != "keep":
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", CHILD], {})
while not os.path.exists(late + ".started"):
    time.sleep(0.01)
sys.stdout.write("started")
if arguments.get("stay"):
    time.sleep(60)
