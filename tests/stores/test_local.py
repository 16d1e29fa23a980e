"""A folder on a disk: what survives a power cut, and what never becomes visible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgsluice.stores.contract import NameTaken
from pgsluice.stores.local import LocalFolder, refuses_links


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """The files and folders that were written out or got a name, in this order."""
    noted: list[tuple[str, Path]] = []
    fsync, link = os.fsync, os.link

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        noted.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))

    def name(source: Path, path: Path) -> None:
        link(source, path)
        noted.append(("name", Path(path)))

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", name)
    return noted


def test_content_is_on_the_disk_before_its_name_and_the_name_after_it(
    tmp_path: Path, calls: list[tuple[str, Path]]
) -> None:
    LocalFolder(tmp_path / "lake").create("log/1", b"one")
    (first, content), (second, named), *others = calls
    assert (first, second) == ("sync", "name")
    assert content.suffix == ".tmp"
    assert named == tmp_path / "lake" / "log" / "1"
    assert {path for _, path in others} == {named.parent, tmp_path / "lake", tmp_path}


def test_a_refused_name_leaves_no_temporary_file(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.create("1", b"ours")
    with pytest.raises(NameTaken):
        folder.create("1", b"theirs")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["1"]


def test_a_disk_has_hard_links(tmp_path: Path) -> None:
    assert not refuses_links(tmp_path / "not made yet")
    assert not [*tmp_path.iterdir()]
