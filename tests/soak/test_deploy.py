"""The files of deploy/, each checked by what reads it, as far as this machine can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from tests.monitor.test_http_server import ask, free_port
from tests.soak.container_image import built
from tests.soak.empty_root import build, container, debian_root
from tests.soak.prometheus import RULES, prometheus_program
from tests.soak.report import ROOT
from tests.soak.systemd_root import Systemd, systemd
from tests.support.databases import Database, MakeDatabase
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline
from tests.support.waiting import await_that

from pgsluice.config import parse_config
from pgsluice.verification import DeltaRows

pytestmark = pytest.mark.soak

DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "pgsluice.yaml"


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.mark.parametrize("unit", ["pgsluice-capture.service", "pgsluice-run.service"])
def test_systemd_accepts_the_units(unit: str, tmp_path: Path) -> None:
    analyze = _need("systemd-analyze")
    for one in (DEPLOY / "systemd").iterdir():
        # The program is not installed here; everything else is as it is.
        text = one.read_text().replace("/opt/pgsluice/bin/pgsluice", sys.executable)
        (tmp_path / one.name).write_text(text)
    said = _run(analyze, "verify", "--man=no", tmp_path / unit)
    assert unit not in said, said


_CONFIG = """
[source]
dsn = "{dsn}"
slot = "{name}"
publications = ["{name}"]
[spool]
path = "/var/lib/pgsluice/spool"
[[subscription]]
name = "lake"
sink = {{ type = "delta", path = "/var/lib/pgsluice/lake/{{schema}}/{{table}}" }}
[spark]
"spark.master" = "local[2]"
"""
_FILE = "etc/pgsluice/pgsluice.toml"


@pytest.fixture
def machine(database: MakeDatabase, tmp_path: Path) -> Iterator[Systemd]:
    """A systemd with the units, whose source has a table of a thousand rows."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 1000)"
    )
    units = (DEPLOY / "systemd").iterdir()
    files = {f"etc/systemd/system/{unit.name}": unit.read_text() for unit in units}
    config = _CONFIG.format(dsn=shop.dsn, name=shop.name)
    with systemd(tmp_path, {**files, _FILE: config}) as one:
        yield one


def test_systemd_restarts_a_capture_that_was_killed_and_not_one_that_is_wrong(
    machine: Systemd,
) -> None:
    unit = "pgsluice-capture"
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.log(unit)
    await_that(lambda: "capture streaming" in machine.log(unit), "capture streams")
    assert machine.run("systemctl", "kill", "-s", "KILL", unit).returncode == 0
    await_that(lambda: machine.log(unit).count("capture streaming") == 2, "it streams again")
    assert machine.show(unit, "NRestarts") == "1"
    assert machine.run("systemctl", "stop", unit).returncode == 0
    assert machine.show(unit, "ActiveState") == "inactive", "exit code 143 is a clean stop"
    assert machine.run("sh", "-c", f"echo nonsense >> /{_FILE}").returncode == 0
    machine.run("systemctl", "start", unit)
    await_that(lambda: machine.show(unit, "ActiveState") == "failed", "exit code 2 is final")
    assert (machine.show(unit, "ExecMainStatus"), machine.show(unit, "NRestarts")) == ("2", "0")


def test_systemd_restarts_a_run_while_capture_lives_on(machine: Systemd) -> None:
    def is_well() -> bool:
        program = ("/opt/pgsluice/bin/pgsluice", "status", f"/{_FILE}", "--check")
        return machine.run("runuser", "-u", "pgsluice", "--", *program).returncode == 0

    unit, capture = "pgsluice-run", "pgsluice-capture"
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.log(unit)
    await_that(is_well, "the table is copied")
    pid, captures = machine.show(unit, "MainPID"), machine.show(capture, "MainPID")
    assert machine.run("systemctl", "reload", unit).returncode == 0
    assert machine.show(unit, "MainPID") == pid
    assert machine.run("systemctl", "kill", "-s", "KILL", unit).returncode == 0
    await_that(lambda: machine.show(unit, "NRestarts") == "1", "systemd has restarted the unit")
    await_that(is_well, "it works again")
    assert machine.show(capture, "MainPID") == captures, "capture has lived on"
    assert machine.run("systemctl", "stop", unit).returncode == 0
    assert machine.show(unit, "ActiveState") == "inactive", "exit code 143 is a clean stop"


def test_the_units_of_a_second_database(tmp_path: Path) -> None:
    """They are made as the page says, and share neither a name nor a folder with the first."""
    analyze = _need("systemd-analyze")
    page = (ROOT / "docs" / "deployments.md").read_text()
    _, _, rest = page.partition("## Two databases on one machine")
    script = rest.split("```")[1].replace("/etc/systemd/system", str(tmp_path))
    subprocess.run(["sh", "-ec", script], cwd=ROOT, check=True)
    made = sorted(tmp_path.iterdir())
    assert [unit.stem for unit in made] == ["pgsluice-crm-capture", "pgsluice-crm-run"]
    for unit in made:
        text = unit.read_text()
        assert "/etc/pgsluice/crm.toml" in text
        assert "StateDirectory=pgsluice-crm\nStateDirectoryMode" in text
        assert "WorkingDirectory=/var/lib/pgsluice-crm\n" in text
        assert "User=pgsluice\nGroup=pgsluice\n" in text
        assert "pgsluice-capture" not in text
        unit.write_text(text.replace("/opt/pgsluice/bin/pgsluice", sys.executable))
    said = _run(analyze, "verify", "--man=no", *made)
    assert "pgsluice-crm" not in said, said


def test_two_databases_on_one_machine(database: MakeDatabase, pipeline: MakePipeline) -> None:
    both = [pipeline(database()), pipeline(database())]
    ports = [free_port(), free_port()]
    for one, port in zip(both, ports, strict=True):
        one.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            f"INSERT INTO t SELECT i, '{one.database.name}' FROM generate_series(1, 1000) i",
        )
        one.spark["spark.master"] = "local[1]"
        one.write(f'[monitor]\nlisten = "127.0.0.1:{port}"\n')
        one.start()
    for one in both:
        one.wait_until(one.spool.exists, why="the run works")
        one.database.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0")
        one.wait_applied()
        one.assert_equal("t")
    slots = [json.loads(ask(port, "/status.json")[1])["source"]["slot"] for port in ports]
    assert slots == [one.database.name for one in both]
    third = pipeline(both[1].database)
    text = f'[monitor]\nlisten = "127.0.0.1:{ports[0]}"\n'
    third.write(text)
    checked = third.command("check", str(third.path)).stdout
    assert "in use" in checked
    assert "another pgsluice uses it" in checked
    assert third.command("run", str(third.path), "--once").returncode == 2
    for one in both:
        one.stop()


def test_a_validator_accepts_the_manifests() -> None:
    uv = Path(sys.executable).with_name("uv")
    tool = [uv, "tool", "run", "-q", "kubernetes-validate==1.37.0"]
    if subprocess.run([*tool, "--help"], capture_output=True, check=False).returncode:
        pytest.skip("kubernetes-validate cannot be installed")
    _run(*tool, "--strict", MANIFESTS)


def test_the_configuration_in_the_manifests_is_one() -> None:
    documents = list(yaml.safe_load_all(MANIFESTS.read_text()))
    (text,) = (one["data"]["pgsluice.toml"] for one in documents if one["kind"] == "ConfigMap")
    assert parse_config(text, Path("/etc/pgsluice/pgsluice.toml")).monitor.address is not None


def test_promtool_accepts_the_alerts() -> None:
    _run(prometheus_program("promtool"), "check", "rules", RULES)


@pytest.fixture
def settings(database: MakeDatabase, tmp_path: Path) -> tuple[Database, Path, Path]:
    """A source with a table, and the folders of a container that copies it: state, settings."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, NULL)"
    )
    state, folder = tmp_path / "state", tmp_path / "settings"
    state.mkdir()
    folder.mkdir()
    (folder / "pgsluice.toml").write_text(_CONFIG.format(dsn=shop.dsn, name=shop.name))
    return shop, state, folder


def _await_a_change(shop: Database, state: Path, look: Callable[[], None]) -> None:
    """Until the table and a change of it are at the target."""
    target = state / "lake" / "public" / "t"

    def has_rows() -> bool:
        look()
        return DeltaTable.is_deltatable(str(target)) and DeltaTable(target).count() == rows

    rows = 2
    await_that(has_rows, "the table is copied")
    shop.execute("INSERT INTO t VALUES (3, 'c')")
    rows = 3
    await_that(has_rows, "the change arrives")


def test_a_container_is_built_and_copies_a_table(
    settings: tuple[Database, Path, Path], tmp_path: Path
) -> None:
    """By podman or docker, with a read-only root, and stopped by the image's own signal."""
    program = shutil.which("podman") or _need("docker")
    shop, state, folder = settings
    with built(program, DEPLOY / "Containerfile", ROOT, tmp_path) as (image, options):
        started = [program, *options, "--read-only", "--tmpfs", "/tmp:size=4g", "--network", "host"]
        assert _run(*started, "--rm", image, "--version").startswith("pgsluice ")
        state.chmod(0o777)  # the image's user is not one of this machine
        mounts = [f"-v{state}:/var/lib/pgsluice", f"-v{folder}:/etc/pgsluice:ro"]
        name = _run(*started, "--detach", *mounts, image).strip()

        def field(words: str) -> str:
            return _run(program, "inspect", "--format", f"{{{{.{words}}}}}", name).strip()

        def lives() -> None:
            assert field("State.Running") == "true", _run(program, "logs", name)

        try:
            _await_a_change(shop, state, lives)
            _run(program, "stop", "--time", "20", name)
            assert field("State.ExitCode") == "143", _run(program, "logs", name)
            assert field("Config.User") == "10001"
        finally:
            subprocess.run([program, "rm", "-f", name], capture_output=True, check=False)
    with shop.connect() as connection:
        assert_equal(connection, "public.t", DeltaRows(str(state / "lake" / "public" / "t")))


def test_the_containers_steps_make_a_run_in_an_empty_root(
    settings: tuple[Database, Path, Path], tmp_path: Path
) -> None:
    """Its program is PID 1 without rights, its root read-only, and SIGTERM ends it."""
    image = build(DEPLOY / "Containerfile", ROOT, debian_root(tmp_path), tmp_path)
    shop, state, folder = settings
    os.chown(state, int(image.user), int(image.user))
    mounts = {"/var/lib/pgsluice": state, "/etc/pgsluice": folder}
    log = tmp_path / "container.log"
    with container(image, mounts, "--version", log=log) as process:
        assert process.wait() == 0, log.read_text()
    assert log.read_text().startswith("pgsluice ")
    with container(image, mounts, log=log) as process:

        def lives() -> None:
            assert process.poll() is None, log.read_text()[-3000:]

        _await_a_change(shop, state, lives)
    assert process.returncode == 128 + image.stop_signal, log.read_text()[-3000:]
    with shop.connect() as connection:
        assert_equal(connection, "public.t", DeltaRows(str(state / "lake" / "public" / "t")))
