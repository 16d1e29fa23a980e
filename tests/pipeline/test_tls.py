"""``sslmode=verify-full`` with one's own authority; certificates change during a run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, Servers, fresh_database
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SourceRefused
from pgsluice.replication import connect_sql

pytestmark = [
    pytest.mark.usefixtures("local_spark"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
_HBA = """
hostssl all,replication app 127.0.0.1/32 trust
host all postgres 127.0.0.1/32 trust
"""
_VERSION = 14
"""The servers of the wheel are built without TLS."""


class Authority:
    """A certificate authority; ``certificate`` is what its clients trust."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._make("ca", "/CN=an authority")

    def sign(self, server: EmbeddedServer, host: str) -> None:
        """Give a server a certificate for a host, from its next connection on."""
        signed_by = ["-CA", str(self.certificate), "-CAkey", str(self._folder / "ca.key")]
        name = ["-addext", f"subjectAltName=DNS:{host}"]
        self._make("server", f"/CN={host}", *signed_by, *name)
        for made in ("server.crt", "server.key"):
            path = server.data_dir / made
            path.unlink(missing_ok=True)
            shutil.copy(self._folder / made, path)
            owner = server.data_dir.stat()
            shutil.chown(path, owner.st_uid, owner.st_gid)
            path.chmod(0o600)

    def _make(self, name: str, subject: str, *options: str) -> None:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        key, certificate = self._folder / f"{name}.key", self._folder / f"{name}.crt"
        files = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", subject]
        command = ["openssl", "req", "-x509", *curve, *files, *options]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def shop(servers: Servers, ours: Authority) -> Iterator[Database]:
    """A database whose server lets the role app in over TLS only."""
    servers(_VERSION)  # or skips
    with CopiedServer(_VERSION, settings={"fsync": "off"}) as server:
        ours.sign(server, "localhost")
        (server.data_dir / "pg_hba.conf").write_text(_HBA)
        server.settings["ssl"] = "on"
        server.restart()
        with fresh_database(server) as made:
            made.execute(
                "CREATE ROLE app SUPERUSER LOGIN",
                "CREATE TABLE t (id serial PRIMARY KEY, v text)",
                "INSERT INTO t (v) VALUES ('first')",
            )
            yield made


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def change_certificate(shop: Database, authority: Authority) -> None:
    """Have the server show another certificate, also to those who are connected."""
    authority.sign(shop.server, "localhost")
    shop.execute(
        "SELECT pg_reload_conf()",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
    )


def test_certificates_change_while_a_run_works(
    shop: Database,
    ours: Authority,
    pipeline: MakePipeline,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = pipeline(shop)
    trusted = tmp_path / "trusted.crt"
    shutil.copy(ours.certificate, trusted)
    host = f"host=localhost hostaddr=127.0.0.1 port={shop.server.port} dbname={shop.name}"
    dsn = f"{host} user=app sslmode=verify-full sslrootcert={trusted}"
    one.path.write_text(one.path.read_text().replace(shop.dsn, dsn))
    with one.live():
        one.wait_applied()
        change_certificate(shop, ours)
        shop.execute("INSERT INTO t (v) VALUES ('a certificate of the same authority')")
        one.wait_applied()
        theirs = Authority(tmp_path / "theirs")
        change_certificate(shop, theirs)
        shop.execute("INSERT INTO t (v) VALUES ('a certificate of another one')")
        one.wait_until(lambda: "certificate verify failed" in caplog.text, why="it is refused")
        shutil.copy(theirs.certificate, trusted)
        one.wait_applied()
        one.wait_until(lambda: "resolved: " in caplog.text, why="the log says that it is over")
    one.assert_equal("t")
    assert one.table("t").copy_number == 1


def test_a_certificate_of_another_host_is_refused(shop: Database, ours: Authority) -> None:
    place = f"hostaddr=127.0.0.1 port={shop.server.port} dbname={shop.name} user=app"
    trusting = f"{place} sslmode=verify-full sslrootcert={ours.certificate}"
    with pytest.raises(SourceRefused, match="does not match host name") as refused:
        connect_sql(f"{trusting} host=db.example")
    assert "sslrootcert" in str(refused.value.hint)
    with connect_sql(f"{trusting} host=localhost") as connection:
        assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    with pytest.raises(SourceRefused, match="no encryption"):
        connect_sql(f"{place} host=localhost sslmode=disable")
