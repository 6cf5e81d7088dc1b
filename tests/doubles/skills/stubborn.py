"""Never reads its input and cannot be asked to stop."""

import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
time.sleep(60)
