"""The whole way of the data behind a server that breaks the protocol.

Each round adds transactions, and replicates them through a proxy with one of the faults of
tests/capture/test_hostile_server.py: the run ends in an error of ours, or goes on. In the end the
server is sound, and the target has its rows.
"""

from __future__ import annotations

import copy
import json
import random

import pytest
from tests.capture.test_hostile_server import CASES
from tests.soak.report import Report
from tests.support.databases import MakeDatabase
from tests.support.hostile_server import HostileProxy
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import PgsluiceError

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

ROUNDS = 20


def test_a_lake_behind_a_hostile_server(
    pg18: EmbeddedServer, database: MakeDatabase, pipeline: MakePipeline, report: Report, seed: int
) -> None:
    with report.row("a server that breaks the protocol", seed) as row:
        choose = random.Random(seed)
        shop = database(pg18)
        shop.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        one = pipeline(shop, source="silence_timeout_s = 1\nconnect_timeout_s = 2")
        one.once()
        text, ended, acted = one.path.read_text(), 0, 0
        for number in range(ROUNDS):
            first = number * 20
            shop.execute(
                f"INSERT INTO t SELECT i, 'x' FROM generate_series({first}, {first + 9}) i",
                f"UPDATE t SET v = v || '{number}' WHERE id % 7 = {number % 7}",
                f"DELETE FROM t WHERE id = {first}",
            )
            fault = copy.deepcopy(CASES[choose.choice(sorted(CASES))].fault)
            with HostileProxy(pg18.port, fault) as proxy:
                through = json.dumps(proxy.dsn(shop.dsn))
                one.path.write_text(text.replace(json.dumps(shop.dsn), through))
                try:
                    one.once()
                except PgsluiceError:
                    ended += 1
            acted += fault.has_acted
            one.path.write_text(text)
        one.once()
        one.assert_equal("t")
        row["figures"] = f"{ROUNDS} rounds, each through a proxy with one of {len(CASES)} faults"
        row["shown"] = f"{acted} faults happened, {ended} runs ended in an error; equal in the end"
