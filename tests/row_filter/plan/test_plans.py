"""A filter is bound and planned once in a process, however often it is asked for."""

from __future__ import annotations

import pickle

from pgsluice.columnar.changes import INSERT
from pgsluice.definitions.source_tables import SourceCatalog, SourceColumn, SourceTable
from pgsluice.publication import Publisher, load_publications
from pgsluice.row_filter import FilterColumn, FilterEvaluator, bind_row_filter, plan_filters

INT4, INT8 = 23, 20


def plan(text: str, type_oid: int = INT4) -> FilterEvaluator:
    return plan_filters([bind_row_filter(text, [FilterColumn("a", type_oid)])])


def test_the_same_filter_on_the_same_columns_shares_its_plan() -> None:
    assert plan("a > 5") is plan("a > 5")
    assert plan("a  >  5") is plan("a > 5")  # where a filter stands in its text makes no difference
    assert plan("a > 5") is not plan("a > 6")
    assert plan("a > 5") is not plan("a > 5", INT8)


def test_an_unpickled_evaluator_is_the_one_that_the_process_has() -> None:
    evaluator = plan("CASE a WHEN 1 THEN true END")
    assert pickle.loads(pickle.dumps(evaluator)) is evaluator


def test_partitions_share_the_plan_of_their_root() -> None:
    columns = (SourceColumn("a", INT4),)
    catalog = SourceCatalog.of(
        (
            SourceTable(
                20000, "public", "root", kind="p", columns=columns, children=(20001, 20002)
            ),
            SourceTable(20001, "public", "leaf1", columns=columns, ancestors=(20000,)),
            SourceTable(20002, "public", "leaf2", columns=columns, ancestors=(20000,)),
        )
    )
    publications = load_publications(
        "CREATE PUBLICATION p FOR TABLE root WHERE (a > 5) WITH (publish_via_partition_root)",
        catalog,
    )
    publishers = [
        Publisher.of(tuple(publications), catalog.tables[oid], catalog) for oid in (20001, 20002)
    ]
    filters = {publisher.filters[INSERT] for publisher in publishers if publisher is not None}
    assert len(filters) == 1
    arrived = pickle.loads(pickle.dumps(publishers))
    assert {publisher.filters[INSERT] for publisher in arrived} == filters
