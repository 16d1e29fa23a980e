"""Servers of tests, on copies of a cluster: each initdb takes a second of CPU.

All workers of a run share one template for each version, which initdb makes when it is first used.
A copy gets a system identifier of its own, as initdb would give it: pgsluice tells servers apart by
it. The identifier is in pg_control, which has a checksum, and in the header of the first WAL
segment.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pgsluice.embedded.server import EmbeddedServer

_TEMPLATES = "PGSLUICE_TEST_CLUSTERS"
_CONTROL = Path("global/pg_control")
_WAL = Path("pg_wal/000000010000000000000001")
_PLACE_IN_WAL = 24
_CRC_PLACES = range(128, 512, 4)
"""Where pg_control's checksum may be: after all fields, which differ between versions."""
_CASTAGNOLI = 0x82F63B78


def share_templates(config: pytest.Config) -> None:
    """Make the folder of templates, and remove it at the end; workers inherit its name."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="pgsluice-clusters-")
        config.add_cleanup(lambda: shutil.rmtree(folder))
        os.environ[_TEMPLATES] = folder


class CopiedServer(EmbeddedServer):
    """An embedded server whose new cluster is a copy."""

    def create_cluster(self) -> None:
        templates = Path(os.environ[_TEMPLATES])
        template = templates / self.version
        with (templates / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                super().create_cluster()
                _copy(self.data_dir, template)
                return
        _copy(template, self.data_dir)
        _change_identifier(self.data_dir)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its owners and permissions; ``target`` appears when it is complete."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    subprocess.run(["cp", "-a", str(source), str(fresh)], check=True)
    fresh.rename(target)


def _change_identifier(data: Path) -> None:
    identifier = secrets.token_bytes(7) + b"\0"  # it is shown as a signed number
    with (data / _WAL).open("r+b") as wal:
        wal.seek(_PLACE_IN_WAL)
        wal.write(identifier)
    with (data / _CONTROL).open("r+b") as control:
        content = control.read()
        crc_at = next(end for end in _CRC_PLACES if _crc32c(content[:end]) == content[end:][:4])
        content = identifier + content[len(identifier) : crc_at]
        control.seek(0)
        control.write(content + _crc32c(content))


def _crc32c(content: bytes) -> bytes:
    """As PostgreSQL computes and stores it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")
