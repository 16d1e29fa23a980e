"""The files of deploy/, each checked by what reads it, as far as this machine can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from tests.soak.empty_root import build, container, debian_root
from tests.soak.prometheus import RULES, prometheus_program
from tests.soak.report import ROOT
from tests.soak.systemd_root import Systemd, systemd
from tests.support.databases import MakeDatabase
from tests.support.oracle import assert_equal
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


def test_a_container_is_built_and_says_its_version() -> None:
    builder = shutil.which("podman") or _need("docker")
    if subprocess.run([builder, "info"], capture_output=True, check=False).returncode:
        pytest.skip(f"{builder} does not work here")
    base = os.environ.get("PGSLUICE_CONTAINER_BASE")
    arguments = ["--build-arg", f"BASE={base}"] if base else []
    built = subprocess.run(
        [
            builder,
            "build",
            "-q",
            "-f",
            "deploy/Containerfile",
            "-t",
            "pgsluice-test",
            *arguments,
            ".",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"the image cannot be built: {built.stderr.strip().splitlines()[-1][:200]}")
    said = _run(
        builder, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "pgsluice-test", "--version"
    )
    assert said.startswith("pgsluice ")


def test_the_containers_steps_make_a_run_in_an_empty_root(
    database: MakeDatabase, tmp_path: Path
) -> None:
    """Its program is PID 1 without rights, its root read-only, and SIGTERM ends it."""
    image = build(DEPLOY / "Containerfile", ROOT, debian_root(tmp_path), tmp_path)
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, NULL)"
    )
    state, settings = tmp_path / "state", tmp_path / "settings"
    state.mkdir()
    settings.mkdir()
    os.chown(state, int(image.user), int(image.user))
    (settings / "pgsluice.toml").write_text(
        f'[source]\ndsn = {json.dumps(shop.dsn)}\nslot = "{shop.name}"\n'
        f'publications = ["{shop.name}"]\n'
        '[spool]\npath = "/var/lib/pgsluice/spool"\n'
        '[[subscription]]\nname = "lake"\n'
        'sink = { type = "delta", path = "/var/lib/pgsluice/lake/{schema}/{table}" }\n'
        '[spark]\n"spark.master" = "local[2]"\n'
    )
    mounts = {"/var/lib/pgsluice": state, "/etc/pgsluice": settings}
    log = tmp_path / "container.log"
    with container(image, mounts, "--version", log=log) as process:
        assert process.wait() == 0, log.read_text()
    assert log.read_text().startswith("pgsluice ")
    target = state / "lake" / "public" / "t"
    with container(image, mounts, log=log) as process:

        def has_rows() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return DeltaTable(target).count() == 3

        await_that(lambda: DeltaTable.is_deltatable(str(target)), "the table is copied")
        shop.execute("INSERT INTO t VALUES (3, 'c')")
        await_that(has_rows, "the change arrives")
    assert process.returncode == 128 + image.stop_signal, log.read_text()[-3000:]
    with shop.connect() as connection:
        assert_equal(connection, "public.t", DeltaRows(str(target)))
