"""The files of deploy/, each checked by what reads it, as far as this machine can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.soak.report import ROOT

from pgsluice.config import parse_config

pytestmark = pytest.mark.soak

DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "pgsluice.yaml"
_BUILT = "github.com/prometheus/prometheus/cmd/promtool"
_PROMTOOL = f"{_BUILT}@v0.305.0"


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
    go, folder = _need("go"), ROOT / ".cache" / "go"
    promtool = folder / "promtool"
    folder.mkdir(parents=True, exist_ok=True)
    # A module of its own: the module of promtool replaces some of its dependencies, and so
    # `go install` refuses it.
    for command in (
        ["mod", "init", "promtool"],
        ["get", _PROMTOOL],
        ["build", "-o", promtool, _BUILT],
    ):
        if promtool.exists() or (command[1] == "init" and (folder / "go.mod").exists()):
            continue
        done = subprocess.run(
            [go, *map(str, command)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
        if done.returncode:
            pytest.skip(f"promtool cannot be built: {done.stderr.strip().splitlines()[-1][:200]}")
    _run(promtool, "check", "rules", DEPLOY / "prometheus" / "pgsluice.rules.yml")


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
