"""Feed mutated messages to the wire decoder: ``fuzz_wire.py [COUNT] [SEED]``.

COUNT is 1,000,000 by default; a tenth as many again go to the transaction tracker. Ends with
a traceback and the input at the first exception that is not a ProtocolError, or where an
accepted input does not encode to itself; else prints how many were accepted and which input
took longest.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.wire.wire_fuzz import fuzz_messages, fuzz_sequences

ROUND = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", nargs="?", type=_number, default=1_000_000)
    parser.add_argument("seed", nargs="?", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    count, seed = arguments.count, arguments.seed
    print(f"seed {seed}", flush=True)
    done = accepted = 0
    slowest = None
    while done < count:
        report = fuzz_messages(seed + done, min(ROUND, count - done))
        done += report.inputs
        accepted += report.accepted
        slowest = max(slowest, report.slowest) if slowest else report.slowest
        if sys.stdout.isatty():
            print(f"\r{done:,} of {count:,}", end="", flush=True)
    taken = fuzz_sequences(seed, count // 10)
    print(f"{done:,} inputs: {accepted:,} accepted, the others a ProtocolError")
    print(f"{count // 10:,} messages in any order: {taken:,} taken, the others a ProtocolError")
    if slowest:
        kind = "a frame" if slowest.is_frame else "a message"
        print(
            f"slowest: {slowest.ns / 1000:.1f} µs for {len(slowest.data)} bytes, {kind},"
            f" in_stream={slowest.in_stream}, parallel={slowest.parallel}"
        )
        print(slowest.data.hex())


def _number(text: str) -> int:
    return int(text.replace(",", ""))


if __name__ == "__main__":
    main()
