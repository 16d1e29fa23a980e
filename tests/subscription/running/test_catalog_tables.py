"""What a run says when the catalog refuses a table; a real one: tests/pipeline/test_catalog.py."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest
from pyspark.errors import AnalysisException
from tests.support.spools import OID, START, SpoolMaker

from pgsluice.config import Config
from pgsluice.lsn import Lsn
from pgsluice.spark.session.starting_context import ContextOnDemand
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.notes import read_catalog_problems
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.running.catalog_tables import CatalogTables


class _Refusing:
    """Spark's context, whose JVM refuses each statement."""

    def __init__(self, why: str) -> None:
        self._why = why

    @property
    def _jvm(self) -> NoReturn:
        raise AnalysisException(self._why)


def catalog(maker: SpoolMaker, why: str) -> CatalogTables:
    sink = {"type": "delta", "path": "/lake/{table}", "register": "{schema}.{table}"}
    config = Config.model_validate(
        {
            "source": {"dsn": "host=/nowhere", "slot": "s"},
            "spool": {"path": str(maker.path)},
            "subscription": ({"name": "lake", "sink": sink},),
        }
    )
    at = Lsn(START)
    table = TableRecord("public", "bücher tab", TableState.READY, at, committed=at, version=0)
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", at, at, {OID: table})
    tables = SubscriptionTables(RecordStore.create(maker.path, record), lambda _: None)
    spark = ContextOnDemand(lambda: cast(Any, _Refusing(why)))
    return CatalogTables(spark, config, config.subscriptions[0], tables)


def test_a_name_that_the_catalog_does_not_take(
    maker: SpoolMaker, caplog: pytest.LogCaptureFixture
) -> None:
    catalog(maker, "[INVALID_SCHEMA_OR_RELATION_NAME] `x` is not a valid name").register_now()
    assert 'rename = { "public.bücher tab" = "' in caplog.text
    assert read_catalog_problems(maker.path, "lake")


def test_what_fails_while_the_run_ends_is_no_problem_of_the_catalog(
    maker: SpoolMaker, caplog: pytest.LogCaptureFixture
) -> None:
    ending = catalog(maker, "Executed command failed")
    ending.stop()
    ending.register_now()
    assert not caplog.messages
    assert not read_catalog_problems(maker.path, "lake")
