"""The kinds of chaos: what happens beside sessions and kills, and how a run is set up for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tests.soak.chaos.tables import CHANGES, HARMLESS, KINDS
from tests.soak.chaos.troubles import restrict, small_disks
from tests.support.every_mode import other_modes
from tests.support.pipeline import Pipeline

_WITNESSES = "witnesses"


@dataclass(frozen=True)
class Mode:
    """One kind of chaos.

    Attributes:
        title: for the page of results.
        schema: templates of schema changes; empty: none.
        is_rough: rights, sessions, publications, the server and disks come and go.
        is_filtered: publications of pgsluice's own choose rows and columns.
        has_all_modes: further subscriptions have all tables in the other modes.
    """

    title: str
    schema: Sequence[str] = ()
    is_rough: bool = False
    is_filtered: bool = False
    has_all_modes: bool = False

    @property
    def witnesses(self) -> str:
        """The schema of tables that show, once they are copied, that everything has come as far."""
        return _WITNESSES if self.is_filtered else "public"

    def prepare(self, one: Pipeline) -> AbstractContextManager[None]:
        """Write the configuration; the tables are there."""
        spool = 'max_bytes = "4 GiB"'  # whatever the disk has left
        extra = _own_publications(one) if self.is_filtered else ""
        one.write(extra + other_modes(one) if self.has_all_modes else extra, spool=spool)
        if not self.is_rough:
            return nullcontext()
        restrict(one)
        return small_disks(one)


def _own_publications(one: Pipeline) -> str:
    """Write them; returns what the configuration needs for them."""
    one.database.execute(f"CREATE SCHEMA {_WITNESSES}")
    tables = ", ".join(kind.published for kind in KINDS)
    (one.folder / "publications.sql").write_text(
        f"CREATE PUBLICATION rows FOR TABLE {tables} WITH (publish_via_partition_root);"
        f"CREATE PUBLICATION {_WITNESSES} FOR TABLES IN SCHEMA {_WITNESSES};"
    )
    names = f'["rows", "{_WITNESSES}"]'
    return f'publications = {names}\n[publications]\nfile = "publications.sql"'


MODES = {
    "data": Mode("data"),
    "schema": Mode("data and schema", schema=(*HARMLESS, *CHANGES)),
    "rough": Mode("data, and rights, sessions, publications, server, disks", is_rough=True),
    "filters": Mode("data, through row filters and column lists", is_filtered=True),
    "every_mode": Mode("data, in every mode", has_all_modes=True),
}
