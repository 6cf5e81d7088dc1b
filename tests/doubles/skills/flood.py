"""Never stops talking, on the stream it is told."""

import json
import sys

stream = getattr(sys, json.load(sys.stdin)["stream"])
while True:
    stream.write("0123456789abcdef" * 4096)
