"""The golden corpus as its tests read it; what the files hold is in ``tests/corpus/README.md``."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgsluice.lsn import Lsn

FOLDER = Path(__file__).resolve().parents[1] / "corpus"


@dataclass(frozen=True)
class Capture:
    """What one server sent of the workload, under one set of options."""

    version: int
    name: str
    options: dict[str, Any]
    counts: dict[str, int]

    @property
    def id(self) -> str:
        return f"{self.version}-{self.name}"

    @property
    def is_parallel(self) -> bool:
        return self.options["streaming"] == "parallel"

    def text(self) -> str:
        """The rows, as psql prints them."""
        return self._read(".txt.xz")

    def messages(self) -> list[tuple[Lsn, bytes]]:
        rows = (line.split("|\\x") for line in self.text().splitlines())
        return [(Lsn.parse(lsn), bytes.fromhex(data)) for lsn, data in rows]

    def objects(self) -> list[dict[str, Any]]:
        """What the messages are expected to say."""
        return [json.loads(line) for line in self._read(".jsonl.xz").splitlines()]

    def _read(self, suffix: str) -> str:
        path = FOLDER / str(self.version) / f"{self.name}{suffix}"
        return lzma.decompress(path.read_bytes()).decode()


def captures() -> list[Capture]:
    """All of them."""
    return [
        Capture(int(path.parent.name), one["name"], one["options"], one["messages"])
        for path in sorted(FOLDER.glob("*/index.json"), key=lambda path: int(path.parent.name))
        for one in json.loads(path.read_text())
    ]


CAPTURES_BY_ID = {capture.id: capture for capture in captures()}
