"""Two subscriptions must not write into one folder, however their paths are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.config.values.path_words import are_entangled

LAKE = "/lake/{schema}/{table}"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (LAKE, True),
        ("/lake/../lake//{schema}/./{table}/", True),
        ("file:///lake/{schema}/{table}", True),
        ("file:///l%61ke/{schema}/{table}", True),
        ("/lake/{table}/{schema}", True),
        ("/lake/{table}", True),  # a table that is called like a schema
        ("/lake/{schema}/{table}/delta", True),
        ("/lake/{schema}/../{table}", True),
        ("/pond/{schema}/{table}", False),
        ("/lake/eu_{schema}/{table}", False),
        ("/lake/{schema}/{table}_eu", False),
        ("/lake", False),
        ("s3://lake/{schema}/{table}", False),
    ],
)
def test_paths(other: str, *, expected: bool) -> None:
    assert are_entangled(LAKE, other) is expected
    assert are_entangled(other, LAKE) is expected


def test_urls() -> None:
    assert are_entangled("s3://b/lake/{table}", "S3://b/lake/x/../{table}/parts")
    assert not are_entangled("s3://b/lake/{table}", "s3://c/lake/{table}")


def test_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert are_entangled(f"{tmp_path}/lake/{{table}}", f"{tmp_path}/link/{{table}}")
