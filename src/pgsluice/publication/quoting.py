"""Names and strings as PostgreSQL quotes them.

Source: src/backend/utils/adt/ruleutils.c, quote_identifier.
"""

from __future__ import annotations

import re

from pgsluice.publication.row_filter.catalog import builtins

_PLAIN = re.compile(r"\A[a-z_][a-z0-9_]*\Z")


def quote_name(name: str) -> str:
    """A name, in double quotes where it needs them."""
    if _PLAIN.match(name) and builtins().keywords.get(name, "U") == "U":
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """A string constant."""
    quoted = "'" + value.replace("'", "''") + "'"
    return quoted if "\\" not in value else "E" + quoted.replace("\\", "\\\\")
