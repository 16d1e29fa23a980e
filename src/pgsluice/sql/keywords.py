"""PostgreSQL's keywords and their categories.

Source: pg_get_keywords() of PostgreSQL 18; ``data/keywords.tsv`` is written by
``scripts/builtins.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def keywords() -> Mapping[str, str]:
    """The category of each keyword: ``U`` unreserved, ``C`` unreserved but no function or type
    name, ``T`` reserved but allowed as function or type name, ``R`` reserved."""
    text = (files(__package__) / "data" / "keywords.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: row[1] for row in rows}
