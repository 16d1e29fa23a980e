"""Row filters as production databases have them, on databases of several locales and encodings.

Each filter of ``production_filters.txt`` is given to a server and to pgsluice: both take it and
give the same truth for every row, or both refuse it. pgsluice refuses fewer than 2 %.
``awkward_filters.txt`` has the edges of types, casts, locales and input functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.filter_oracle import Outcome, Verdict
from tests.support.filter_table import TABLE, FilterTable, insert_rows

from pgsluice.embedded import EmbeddedServer


def _filters(name: str) -> list[str]:
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


FILTERS = _filters("production_filters.txt")
AWKWARD = _filters("awkward_filters.txt")
#: pgsluice reads filters as PostgreSQL 18 does; older servers do not know these forms.
NEWER = (
    "uuid_extract",
    "0x1F",
    "1_000.5",
    "0x2A",
    "0b101",
    "'infinity'",
    "'-infinity'",
    "age(",
    "crc32(raw)",
)
#: How each database is made, and its server.
DATABASES = {
    "unicode": (18, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' ENCODING UTF8"),
    "latin1": (18, "LOCALE 'C' ENCODING LATIN1"),
    "turkish": (15, "LOCALE_PROVIDER icu ICU_LOCALE 'tr' ENCODING UTF8"),
}
SEED = 5


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest, servers: object) -> Iterator[FilterTable]:
    version, options = DATABASES[request.param]
    server: EmbeddedServer = servers(version)  # type: ignore[operator]
    name = f"filters_{request.param}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}".encode())
    try:
        with psycopg.connect(server.dsn(name), autocommit=True) as connection:
            connection.execute(TABLE.encode())
            insert_rows(connection, SEED)
            yield FilterTable(connection)
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("table", ["unicode", "turkish"], indirect=True)
def test_filters_of_production_databases(table: FilterTable) -> None:
    outcomes = compared(table, FILTERS)
    same = [outcome for outcome in outcomes if outcome.verdict is Verdict.SAME]
    refused = [outcome for outcome in outcomes if outcome.verdict is Verdict.REFUSED]
    assert len(same) >= 200
    assert len(refused) < 0.02 * len(outcomes), "\n".join(one.text for one in refused)


@pytest.mark.parametrize("table", ["latin1", "turkish"], indirect=True)
def test_filters_at_the_edges_of_types_casts_and_locales(table: FilterTable) -> None:
    compared(table, AWKWARD)


def compared(table: FilterTable, texts: list[str]) -> list[Outcome]:
    """The outcomes of filters; none may differ from the server."""
    if table.version < 180000:
        texts = [text for text in texts if not any(newer in text for newer in NEWER)]
    outcomes = [table.compare(text) for text in texts]
    different = [outcome for outcome in outcomes if outcome.verdict is Verdict.DIFFERENT]
    assert not different, "\n".join(map(str, different))
    return outcomes
