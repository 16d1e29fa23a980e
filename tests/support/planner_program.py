"""The program that Spark starts for a planner: see :mod:`tests.support.forked_planner`.

It imports little, because it starts for each query. It connects to the JVM first of all: Spark
waits ten seconds for that, which no setting changes.
"""

import json
import os
import signal
import socket
import struct
import sys

jvm = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
jvm.sendall(struct.pack(">i", len(secret)) + secret)
planner = socket.socket(socket.AF_UNIX)
planner.connect(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: planner.send(b"T"))
socket.send_fds(planner, [b"F"], [0, 1, 2, jvm.fileno()])
jvm.close()
planner.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
with planner.makefile("rb") as lines:
    code = int(lines.readline() or b"-9")
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
