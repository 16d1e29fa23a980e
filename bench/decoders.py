"""The speed of the object decoder, compared with other decoders in pure Python.

    python -m bench.decoders [MESSAGES]

:func:`pgsluice.wire.decode_message` and the decoders on PyPI read the same bytes: Insert and
Update messages of seven columns. The others are installed into a temporary folder, without their
dependencies (drivers, which decoding does not need). A package that cannot be installed is left out
with a notice. The figures are CPU times of one core, the best of some runs.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from bench.decode import RELATION, inserts, updates
from bench.report import Line, rate, ratio
from pgsluice.wire import decode_message

Decode = Callable[[bytes], object]

MESSAGES = 20_000
_REPEATS = 7


def _pgoutput(folder: Path) -> Decode:
    """``pgoutput``: one decoder for each connection; it must know the relation."""
    with _importable(folder):
        decode: Decode = importlib.import_module("pgoutput").Decoder().decode
    decode(RELATION.encode())
    return decode


def _pypgoutput(folder: Path) -> Decode:
    """``pypgoutput``: one class for each tag. (``pypg-cdc`` has the same code.)"""
    # Its package imports a database driver; the module that decodes does not.
    module = _load(folder / "pypgoutput" / "decoders.py")
    kinds = {ord("I"): module.Insert, ord("U"): module.Update}
    return lambda data: kinds[data[0]](data)


OTHERS: dict[str, Callable[[Path], Decode]] = {"pgoutput": _pgoutput, "pypgoutput": _pypgoutput}
"""Packages on PyPI that decode pgoutput in pure Python, and how to call each."""


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _load(path: Path) -> ModuleType:
    name = f"{path.parent.name}_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def install(package: str, folder: Path) -> str | None:
    """Install a package into a folder.

    Returns:
        why that was not possible, or None.
    """
    command = [
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"),
        *("--python", sys.executable, "--target", str(folder), package),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    words = (done.stderr.strip() or "no reason given").splitlines()[0]
    return words.removeprefix("error: ").strip()


def microseconds(decode: Decode, messages: Sequence[bytes]) -> float:
    """The CPU time for one message."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.process_time()
        for message in messages:
            decode(message)
        best = min(best, time.process_time() - start)
    return best / len(messages) * 1e6


def measure(count: int = MESSAGES) -> list[Line]:
    """A line for each workload and other decoder; without others, one for each workload."""
    workloads = {"insert": list(inserts(count)), "update": list(updates(count))}
    ours = {name: microseconds(decode_message, raw) for name, raw in workloads.items()}
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="pgsluice-decoders-") as temporary:
        for package, make in OTHERS.items():
            folder = Path(temporary) / package
            if reason := install(package, folder):
                print(f"{package} is left out: {reason}", file=sys.stderr)
                continue
            decode = make(folder)
            for name, raw in workloads.items():
                lines.append(_line(name, ours[name], package, microseconds(decode, raw)))
    return lines or [
        Line(f"{took:.1f} us", "", f"objects of {name} messages", rate(1e6 / took))
        for name, took in ours.items()
    ]


def _line(workload: str, ours: float, package: str, theirs: float) -> Line:
    return Line(
        today=ratio(theirs, ours),
        reach="> 1 x",
        what=f"objects of {workload} messages, 7 columns",
        figure=f"{ours:.1f} us a message",
        against=f"{package}: {theirs:.1f} us",
    )


def main() -> None:
    """Print the lines."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES
    for line in measure(count):
        print("  ".join(filter(None, line.cells())))


if __name__ == "__main__":
    main()
