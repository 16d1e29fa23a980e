"""A server of this room's own: its settings, its pg_hba.conf and its end are part of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.support.clusters import CopiedServer

from pgsluice.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def _own_server(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Of the version under test."""
    version = int(server.version.partition(".")[0])
    own = CopiedServer(version, settings={"fsync": "off", "max_prepared_transactions": "5"})
    own.start()
    yield own
    own.close()


@pytest.fixture
def own_server(
    _own_server: EmbeddedServer,
) -> Iterator[Callable[..., EmbeddedServer]]:
    """``own_server(wal_level="replica")``: a server of ours, restarted with these settings."""
    before = dict(_own_server.settings)
    hba = _own_server.data_dir / "pg_hba.conf"
    hba_before = hba.read_text()

    def configure(**settings: str) -> EmbeddedServer:
        _own_server.settings.update(settings)
        _own_server.restart()
        return _own_server

    yield configure
    _own_server.settings = before
    hba.write_text(hba_before)
    _own_server.start()
    with psycopg.connect(_own_server.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
        )
    _own_server.restart()
    with psycopg.connect(_own_server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
