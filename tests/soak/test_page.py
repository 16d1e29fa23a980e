"""The page in Chromium: used by keyboard, in light and dark, on a phone, with 5,000 tables.

Chromium is the system's (Debian: ``apt-get install chromium``). npm brings axe-core, which searches
for what people with screen readers or low vision cannot use. The test writes the docs' pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.soak.page.scene import SCRIPT, Scene
from tests.soak.report import ROOT, Report
from tests.support.commands import WriteConfig
from tests.support.commands import write_config as write_config

from pgsluice.monitor.metrics.http_server import MonitorServer
from pgsluice.monitor.metrics.serving import status_pages

pytestmark = pytest.mark.soak

PROGRAM = Path(__file__).parent / "page"
PICTURES = ROOT / "docs" / "pictures"
_TABLES_OF_PICTURES = 40
_BROWSER_S = 300


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the npm packages of page/package.json."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = ROOT / ".cache" / "page"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM / "package.json", folder)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def _browse(scene: Scene, chromium: str, packages: Path, shots: Path) -> dict[str, Any]:
    """What browser.mjs found at the page of a scene."""
    # browser.mjs reads more often than a person.
    pages = status_pages(scene.config, scene.status, every_s=0.0)
    with MonitorServer(("127.0.0.1", 0), pages) as server:
        url = f"http://127.0.0.1:{server.port}/"
        command = ["node", str(PROGRAM / "browser.mjs"), url, chromium, str(packages), str(shots)]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_BROWSER_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("tables", [_TABLES_OF_PICTURES, 5000])
def test_a_browser_shows_it(
    tables: int,
    chromium: str,
    packages: Path,
    tmp_path: Path,
    report: Report,
) -> None:
    with report.row(f"the page with {tables:,} tables in Chromium", 0) as row:
        found = _browse(Scene(tables, odd=True), chromium, packages, tmp_path)
        assert found["errors"] == []
        assert found["foreign"] == [], "the page asks nobody but its server"
        assert found["axe"] == {"desktop": [], "dark": [], "phone": []}
        assert found["overflow"] == {"desktop": 0, "dark": 0, "phone": 0}
        assert (found["title"], found["scripts"]) == ("(2) pgsluice · shop", 1)
        assert found["searched"] == [f"sales.{SCRIPT}"]
        assert found["first"] == "sales.ledger", "trouble is first"
        assert found["parked"] == ["sales.ledger"]
        assert "remove them at the source" in found["why"]
        assert (found["ascending"], found["descending"]) == ("ascending", "descending")
        assert found["isSorted"] == [True, True]
        assert found["focus"] == "Table", "the focus stays on the header that sorts"
        assert found["tab"][:3] == ["A Skip to the tables", "INPUT search", "SELECT filter"]
        assert found["alive"], "a selected text stays while the figures change"
        assert found["inline"] == "TypeError", "the policy forbids HTML from text"
        if tables == _TABLES_OF_PICTURES:
            PICTURES.mkdir(exist_ok=True)
            for name in ("page-desktop.png", "page-dark.png", "page-phone.png"):
                shutil.copy(tmp_path / name, PICTURES)
        row["figures"] = "light, dark, phone; by keyboard; a table named <script>"
        row["shown"] = (
            f"axe-core finds nothing; first paint after {found['paint']:.0f} ms, "
            f"a search takes {found['searchMs']} ms"
        )


def test_the_program_serves_it_until_it_is_stopped(write_config: WriteConfig) -> None:
    path = write_config("host=127.0.0.1 port=1 dbname=shop")
    command = [sys.executable, "-m", "pgsluice", "page", str(path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stdout is not None
        address = program.stdout.readline().strip().removeprefix("http://").removesuffix("/")
        connection = HTTPConnection(address)
        connection.request("GET", "/status.json")
        assert json.load(connection.getresponse())["source"]["slot"] == "pgsluice"
        connection.close()
        program.send_signal(signal.SIGINT)
        assert program.wait() == 130
