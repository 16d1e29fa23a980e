"""The program that Spark starts for a planner: see :mod:`tests.support.forked_planner`.

It imports little, because it starts for each query.
"""

import json
import os
import signal
import socket
import sys

planner = socket.socket(socket.AF_UNIX)
planner.connect(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: planner.send(b"T"))
socket.send_fds(planner, [b"F"], [0, 1, 2])
planner.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
with planner.makefile("rb") as lines:
    code = int(lines.readline() or b"-9")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
