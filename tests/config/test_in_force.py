"""Which settings of a changed file a run takes over, and which need a new start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.config import Config, parse_config
from pgsluice.config.in_force import Difference, difference, digests, taken_over

_TEXT = """
[source]
dsn = "postgresql://app:secret@db/shop"
[spool]
path = "spool"
[publications]
sql = "CREATE PUBLICATION p FOR TABLE t"
[[subscription]]
name = "lake"
publications = ["p"]
sink = { type = "delta", path = "lake/{schema}/{table}" }
max_rows_per_batch = 10
[[subscription]]
name = "lake2"
sink = { type = "delta", path = "lake2/{schema}/{table}" }
[spark]
"spark.master" = "local[2]"
"""
_LAKE = '[subscription] "lake"'


def config(*changes: tuple[str, str]) -> Config:
    text = _TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return parse_config(text, Path("/etc/shop.toml"))


@pytest.mark.parametrize(
    ("change", "taken", "left"),
    [
        (("max_rows", 'types = { "public.t.c" = "string" }\nmax_rows'), (f"{_LAKE} types",), ()),
        (("max_rows", 'key = { "public.t" = ["a"] }\nmax_rows'), (f"{_LAKE} key",), ()),
        (("/{table}", '/{table}", merge = "on_write'), (f"{_LAKE} sink",), ()),
        (("FOR TABLE t", "FOR TABLE t, u"), ("[publications]",), ()),
        (('["p"]', '["p", "q"]'), (f"{_LAKE} publications",), ()),
        (('publications = ["p"]\n', ""), (), (f"{_LAKE} publications",)),
        (('"lake/', '"pond/'), (), (f"{_LAKE} sink",)),
        (("batch = 10", "batch = 11"), (), (f"{_LAKE} max_rows_per_batch",)),
        (("local[2]", "local[3]"), (), ("[spark] spark.master",)),
        (("secret", "other"), (), ("[source] dsn",)),
        (
            ('name = "lake2"', 'name = "pool"'),
            (),
            ('[subscription] "lake2"', '[subscription] "pool"'),
        ),
        (("\n", "\n# a comment\n"), (), ()),
    ],
)
def test_each_changed_setting_is_named(
    change: tuple[str, str], taken: tuple[str, ...], left: tuple[str, ...]
) -> None:
    before, after = config(), config(change)
    found = difference(digests(before), digests(after))
    assert found == Difference(taken, left)
    # What was taken over does not differ any more, and nothing else was taken over.
    in_force = taken_over(before, after)
    assert difference(digests(in_force), digests(after)) == Difference((), left)
    assert difference(digests(before), digests(in_force)) == Difference(taken, ())


def test_digests_show_no_value() -> None:
    assert "secret" not in str(digests(config()))
