"""Alerts, the dashboard and the page name only metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.metrics_page import PAGE, page

from pgsluice.events import CapturePhase
from pgsluice.monitor.metrics.families import FAMILIES, Kind
from pgsluice.monitor.problems import ProblemKind
from pgsluice.monitor.spool_status import Keeper
from pgsluice.monitor.wording import STATES

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "pgsluice.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "pgsluice.json"
_NAME = re.compile(r"\bpgsluice_[a-z0-9_]+")
_LABEL = re.compile(r'(\w+)=~?"([^"$]*)"')
VALUES = {
    "phase": {phase.name.lower() for phase in CapturePhase},
    "kind": {kind.value for kind in ProblemKind},
    "keeper": {keeper.value for keeper in Keeper},
    "state": {words.replace(" ", "_") for words in STATES.values()},
    "wal_status": {"reserved", "extended", "unreserved", "lost"},
    "job": {"pgsluice"},
}
"""The values that labels in expressions may have."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (entry["query"] for entry in board["templating"]["list"])


def served() -> set[str]:
    names = {family.name for family in FAMILIES}
    histograms = {family.name for family in FAMILIES if family.kind is Kind.HISTOGRAM}
    return names | {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}


def test_each_metric_in_an_alert_or_the_dashboard_exists() -> None:
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert len(named) > 40
    assert sorted(named - served()) == []


def test_each_label_in_an_alert_or_the_dashboard_can_have_its_value() -> None:
    found = [pair for expression in expressions() for pair in _LABEL.findall(expression) if pair[1]]
    assert found
    for label, value in found:
        assert set(value.split("|")) <= VALUES[label], (label, value)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_has_a_severity_and_words(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]


def test_the_page_lists_the_alerts() -> None:
    text = PAGE.read_text()
    listed = re.findall(r"^\| `(Pgsluice\w+)` \|", text, re.MULTILINE)
    assert listed == [rule["alert"] for rule in rules()]


def test_the_page_lists_the_problems() -> None:
    section = PAGE.read_text().partition("## status --check")[2].partition("## Health")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(kind.value for kind in ProblemKind)


def test_the_page_lists_the_metrics() -> None:
    """``python scripts/metrics_page.py`` writes them again."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text)
