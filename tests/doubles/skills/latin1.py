"""Speaks an encoding of its own on the stream it is told."""

import json
import sys

getattr(sys, json.load(sys.stdin)["stream"]).buffer.write(
    "Thuế hoá đơn é".encode("latin-1", "replace")
)
