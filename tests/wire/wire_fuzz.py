"""Wrong bytes by the thousand: mutations of every golden message.

What must hold for each input: it decodes, and encodes to the same bytes; or it is a
:class:`ProtocolError`. The same for sequences of messages and the transaction machine.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.wire.wire_vectors import FRAME_VECTORS, VECTORS

from pgsluice.errors import ProtocolError
from pgsluice.wire import TransactionMachine, decode_copy_data, decode_message

_SEEDS = tuple((vector.data, vector.options, False) for vector in VECTORS) + tuple(
    (vector.data, vector.options, True) for vector in FRAME_VECTORS
)
_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f",
    b"\x00\x00",
    b"\xff\xff",
    b"\x7f\xff",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f" + b"\xff" * 7,
    b"\x80" + b"\x00" * 7,
    *(bytes([tag]) for tag in b"BCORYIUDTMSEcAbPKrpNntu"),
)


@dataclass(frozen=True, order=True)
class Slow:
    """An input and how long it took at best, in nanoseconds."""

    ns: int
    data: bytes
    in_stream: bool
    parallel: bool
    is_frame: bool


@dataclass(frozen=True)
class Report:
    """What a run of the fuzzer saw."""

    inputs: int
    accepted: int
    slowest: Slow


def mutate(generator: random.Random, data: bytes) -> bytes:
    """One to four small wrongs: a byte, a well-known number, a cut, a repeat, a splice."""
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        at = generator.randint(0, len(changed))
        match generator.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << generator.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = generator.randrange(256)
            case 2:
                some = generator.choice(_INTERESTING)
                changed[at : at + len(some)] = some
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = generator.randbytes(generator.randint(1, 8))
            case 5:
                part = bytes(changed[at : at + generator.randint(1, 16)])
                changed[at:at] = part * generator.randint(1, 40)
            case _:
                changed[at:] = generator.choice(_SEEDS)[0][at:]
    return bytes(changed)


def inputs(generator: random.Random, count: int) -> Iterator[tuple[bytes, bool, bool, bool]]:
    """Mutated messages: (bytes, in_stream, parallel, is a frame)."""
    for _ in range(count):
        data, options, is_frame = generator.choice(_SEEDS)
        in_stream, parallel = options.get("in_stream", False), options.get("parallel", False)
        match generator.randrange(10):  # now and then the wrong mode
            case 0:
                in_stream = not in_stream
            case 1:
                parallel = not parallel
        yield mutate(generator, data), in_stream, parallel, is_frame


def _decode(data: bytes, in_stream: bool, parallel: bool, is_frame: bool) -> bool:
    """Whether the input is a message; raises what must not happen."""
    try:
        if is_frame:
            again = decode_copy_data(data).encode()
        else:
            again = decode_message(data, in_stream=in_stream, parallel=parallel).encode()
    except ProtocolError as error:
        refusal = error
    else:
        assert again == data, f"{data.hex()} came back as {again.hex()}"
        return True
    assert refusal.tag == (chr(data[0]) if data else None)
    assert 0 <= refusal.offset <= len(data)
    assert refusal.expected
    return False


def fuzz_messages(seed: int, count: int) -> Report:
    """Decode ``count`` mutated messages.

    Raises:
        AssertionError: an input was accepted and came back as something else.
        Exception: anything but a ProtocolError that the decoder raised.
    """
    accepted = 0
    slowest: list[tuple[int, tuple[bytes, bool, bool, bool]]] = []
    for one in inputs(random.Random(seed), count):
        start = time.perf_counter_ns()
        try:
            accepted += _decode(*one)
        except Exception as error:
            error.add_note(f"input: {one[0].hex()} {one[1:]}")
            raise
        heapq.heappush(slowest, (time.perf_counter_ns() - start, one))
        if len(slowest) > 20:
            heapq.heappop(slowest)
    # The slowest of one try were mostly interrupted by something: try them again.
    return Report(count, accepted, max(Slow(_best(*one), *one) for _, one in slowest))


def _best(data: bytes, in_stream: bool, parallel: bool, is_frame: bool) -> int:
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        _decode(data, in_stream, parallel, is_frame)
        times.append(time.perf_counter_ns() - start)
    return min(times)


def fuzz_sequences(seed: int, count: int) -> int:
    """Feed ``count`` messages, sound and mutated, in any order to transaction trackers.

    Returns:
        how many were taken.
    """
    generator = random.Random(seed)
    taken = 0
    machine = TransactionMachine()
    for number in range(count):
        if number % 200 == 0:
            machine = TransactionMachine(parallel=generator.random() < 0.5)
        data = generator.choice(VECTORS).data
        if generator.random() < 0.2:
            data = mutate(generator, data)
        before = (machine.state, machine.xid, machine.open_streams)
        try:
            machine.feed(data)
            taken += 1
        except ProtocolError:
            # A refused message leaves everything as it was.
            assert (machine.state, machine.xid, machine.open_streams) == before
        except Exception as error:
            error.add_note(f"input: {data.hex()} in state {before}")
            raise
    return taken
