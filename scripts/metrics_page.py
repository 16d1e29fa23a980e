"""Write the table of metrics at the end of docs/monitoring.md, from the families in the code.

``python scripts/metrics_page.py`` writes it; tests/monitor/test_deploy.py compares it.
"""

from __future__ import annotations

from pathlib import Path

from pgsluice.monitor.metrics.families import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "monitoring.md"
_MARK = "<!-- families: scripts/metrics_page.py writes this table -->\n"


def page(text: str) -> str:
    """The page with the table that the code has."""
    before, mark, _ = text.partition(_MARK)
    assert mark, "the page has no place for the table"
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return before + mark + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
