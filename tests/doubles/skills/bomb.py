"""Doubles itself as fast as it can, in a new session each time if told to.

Says so once where the kernel refuses it, and gives up after five seconds, for the machine's sake.
"""

import json
import os
import sys
import time

sessions = json.load(sys.stdin)["sessions"]
end = time.monotonic() + 5
told = False
while time.monotonic() < end:
    try:
        if os.fork() == 0 and sessions:
            os.setsid()
    except OSError:
        if not told:
            os.write(2, b"refused\n")
        told = True
