"""Attacks the process that keeps it, then leaves its mark if it is still there."""

import json
import os
import signal
import sys
import time

how = json.load(sys.stdin)["how"]
try:
    os.kill(os.getppid(), getattr(signal, how))
except OSError as error:
    sys.stderr.write(type(error).__name__)
time.sleep(60 if how == "SIGSTOP" else 0.3)
with open(os.path.join(os.environ["CUO_OUTBOX"], "mark"), "w", encoding="utf-8") as mark:
    mark.write("alive")
