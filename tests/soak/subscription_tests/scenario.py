"""The scenarios of scenarios.sql: what PostgreSQL's subscription tests show, for a lake.

Each scenario has a schema of its own, so that many share one database and one run. Its SQL runs
with that schema as the search path; ``{s}`` is the schema's name. Comments of the form
``-- step`` divide a scenario:

* ``scenario NAME``: the number of PostgreSQL's file, and what is shown. The tables follow.
* ``publish``: statements about publications, which name tables in full. Without it: the schema.
* ``step``: statements about publications only, or none of them.
* ``rows TABLE``, ``rows TABLE: QUERY``: the rows that a target has in the end.
* ``own rows …``: the same, where publications of pgsluice's own make other targets: without
  ``publish_via_partition_root`` each partition is a table by itself.
* ``absent TABLE``: has no target.
* ``parked TABLE: WORDS``: stops with these words (a regular expression), where a lake cannot do,
  or does not do yet, what a PostgreSQL server does.
* ``differs WHY``: why the rows are not those that PostgreSQL's file expects.
* ``since VERSION``: of the server; 15 without it.
* ``server only``: not for publications of pgsluice's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_FILE = Path(__file__).with_name("scenarios.sql")
_MARK = re.compile(
    r"-- (scenario|since|differs|server only|publish|step|rows|own rows|absent|parked)\b ?(.*)"
)
_OLDEST = 15


@dataclass
class Scenario:
    """One scenario; ``rows``, ``own_rows`` and ``parked`` are by table."""

    name: str
    setup: list[str] = field(default_factory=list)
    publications: list[str] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    own_rows: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    parked: dict[str, str] = field(default_factory=dict)
    differs: str = ""
    since: int = _OLDEST
    is_server_only: bool = False

    @property
    def slug(self) -> str:
        """The scenario's schema."""
        return "s" + re.sub(r"[^a-z0-9]+", "_", self.name.lower())[:48].strip("_")

    def sql(self, text: str) -> str:
        """A text with the schema's name filled in."""
        return text.replace("{s}", self.slug)

    def title(self, table: str) -> str:
        """A table's name with its schema."""
        table = self.sql(table)
        return table if "." in table else f"{self.slug}.{table}"

    @property
    def publication_names(self) -> list[str]:
        """What is subscribed to: all publications that are there at first."""
        made = (re.match(r"CREATE PUBLICATION (\S+)", text) for text in self.publications)
        return [self.sql(found[1]) for found in made if found]

    @property
    def prepares(self) -> bool:
        """Whether a step leaves a prepared transaction open."""
        return any("PREPARE TRANSACTION" in text for step in self.steps for text in step)

    def expected(self, *, is_own: bool) -> dict[str, str]:
        """Table -> query, for the server's publications or for pgsluice's own; "": its rows."""
        return (self.own_rows if is_own else {}) or self.rows


def is_about_publications(step: list[str]) -> bool:
    """Whether a step changes publications, not tables."""
    return all(re.match(r"(CREATE|ALTER|DROP) PUBLICATION", text) for text in step)


def read_scenarios() -> list[Scenario]:
    """All scenarios of the file, in its order."""
    return [_read(text) for text in _FILE.read_text().split("-- scenario ")[1:]]


def _read(text: str) -> Scenario:
    name, _, body = text.partition("\n")
    scenario = Scenario(name)
    part = scenario.setup
    statement: list[str] = []
    for line in body.splitlines():
        mark = _MARK.fullmatch(line)
        if mark is not None:
            part = _take(scenario, mark[1], mark[2], part)
        elif line.strip():
            statement.append(line)
            if line.endswith(";"):
                part.append("\n".join(statement).removesuffix(";"))
                statement = []
    assert not statement, f"{name}: {statement} does not end"
    if not scenario.publications:
        scenario.publications.append("CREATE PUBLICATION {s} FOR TABLES IN SCHEMA {s}")
    return scenario


def _take(scenario: Scenario, mark: str, rest: str, part: list[str]) -> list[str]:
    """Take one comment; returns where the statements after it belong."""
    table, _, text = rest.partition(": ")
    match mark:
        case "publish":
            return scenario.publications
        case "step":
            scenario.steps.append([])
            return scenario.steps[-1]
        case "rows":
            scenario.rows[table] = text
        case "own rows":
            scenario.own_rows[table] = text
        case "parked":
            scenario.parked[table] = text
        case "absent":
            scenario.absent.append(rest)
        case "differs":
            scenario.differs = rest
        case "since":
            scenario.since = int(rest)
        case "server only":
            scenario.is_server_only = True
    return part
