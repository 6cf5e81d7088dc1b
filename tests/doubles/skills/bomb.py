"""Doubles itself as fast as it can, in a new session each time if told to.

Gives up after five seconds, for the machine's sake.
"""

import contextlib
import json
import os
import sys
import time

sessions = json.load(sys.stdin)["sessions"]
end = time.monotonic() + 5
while time.monotonic() < end:
    with contextlib.suppress(OSError):
        if os.fork() == 0 and sessions:
            os.setsid()
