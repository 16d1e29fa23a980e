"""`pgsluice verify` while sessions write and processes are killed: rows never differ."""

from __future__ import annotations

import json
import random
import subprocess
import threading

from tests.soak.chaos.sessions import Journal
from tests.support.pipeline import Pipeline

_AGAIN_S = 1.0
"""The pause after a verification that has compared no table, in seconds."""


class Verifier(threading.Thread):
    """Verifies all tables now and then, until ``ended``.

    A verification that does not get through, because the run or capture is killed meanwhile or
    because a table is parked, says nothing about the rows.

    Attributes:
        equal: how many comparisons found source and target equal.
        fruitless: how many verifications have compared no table.
        wrong: table -> how it differs.
    """

    def __init__(self, one: Pipeline, seed: int, journal: Journal, ended: threading.Event) -> None:
        super().__init__(name="verify")
        self.equal = self.fruitless = 0
        self.wrong: dict[str, str] = {}
        self._one = one
        self._dice = random.Random(f"{seed} verify")
        self._journal = journal
        self._ended = ended

    def run(self) -> None:
        pause_s = self._dice.uniform(5, 20)
        while not self._ended.wait(pause_s):
            pause_s = self._dice.uniform(5, 20) if self.verify() else _AGAIN_S

    def verify(self) -> int:
        """Verify all tables once; how many are equal."""
        self._journal.note(self.name, "begins")
        equal, reasons = 0, set()
        try:
            done = self._one.command("verify", str(self._one.path), "--json")
        except subprocess.TimeoutExpired:
            reasons.add("did not get through in time")
        else:
            tables = json.loads(done.stdout) if done.stdout.startswith("[") else []
            if not tables:
                reasons.add(f"ended with {done.returncode}: {done.stderr}")
            for table in tables:
                equal += table["equal"] is True
                if table["equal"] is False:
                    keys = {name: table[name] for name in table if name.endswith("_keys")}
                    title = f"{table['subscription']}: {table['table']}"
                    self.wrong[title] = f"verify: differs at {table['position']}: {keys}"
                    self._journal.note(self.name, self.wrong[title])
                reasons.add(table["reason"])
        self.equal += equal
        self.fruitless += not equal
        self._journal.note(self.name, f"{equal} tables are equal; others: {reasons - {None}}")
        return equal
