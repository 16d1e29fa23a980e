"""A real Prometheus, of Debian's package, which scrapes and judges the alerts of ``deploy/``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.monitor.test_http_server import free_port
from tests.soak.debian import debian_package
from tests.support.waiting import await_that

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "pgsluice.rules.yml"


def prometheus_program(name: str) -> Path:
    """``prometheus`` or ``promtool``, downloaded once; without Debian's packages, a skip."""
    return debian_package("prometheus") / "usr" / "bin" / name


class Prometheus:
    """A Prometheus that works.

    Args:
        url: of its API.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The series that an expression has now."""
        answer = self._ask("query", query=expression)
        return [(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def value(self, expression: str) -> float | None:
        """The value of an expression with one series; None: it has none."""
        found = self.query(expression)
        return found[0][1] if found else None

    def firing(self, *, over: str = "") -> set[str]:
        """The names of the alerts that fire now, or fired ``over`` a time such as ``60s``."""
        series = 'ALERTS{alertstate="firing"}'
        expression = f"count_over_time({series}[{over}])" if over else series
        return {metric["alertname"] for metric, _ in self.query(expression)}

    def _ask(self, what: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{what}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]


@contextmanager
def scraping(folder: Path, target: str, shorter: float) -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``target`` each second, until the end of the block.

    Args:
        folder: an existing folder for its files.
        shorter: by this, the times of the rules are divided.
    """

    def divide(found: re.Match[str]) -> str:
        return f"{found[1]}{int(int(found[2]) * 60 / shorter)}s"

    rules = re.sub(r"(for: |\[)(\d+)m\b", divide, RULES.read_text())
    (folder / "rules.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s, evaluation_interval: 1s }\n"
        "rule_files: [rules.yml]\n"
        "scrape_configs:\n"
        f"  - {{ job_name: pgsluice, static_configs: [{{ targets: ['{target}'] }}] }}\n"
    )
    listen = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                prometheus_program("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={listen}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        one = Prometheus(f"http://{listen}")

        def answers() -> bool:
            try:
                return bool(one.query("up"))
            except OSError:
                return False

        await_that(answers, "Prometheus has scraped")
        yield one
    finally:
        process.terminate()
        process.wait()
