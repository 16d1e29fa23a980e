"""Comments of the source reach the targets that are registered, in commits of their own."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.subscription.running.catalog_tables import TargetComments


def comments_of(one: Pipeline, table: str) -> tuple[str | None, dict[str, str]]:
    delta = one.delta(table)
    fields = {field.name: field.metadata.get("comment") for field in delta.schema().fields}
    return delta.metadata().description, {name: text for name, text in fields.items() if text}


@pytest.mark.usefixtures("local_spark")
def test_targets_get_and_keep_the_comments_of_the_source(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text, hidden int)",
        "ALTER TABLE t DROP COLUMN hidden",
        "INSERT INTO t VALUES (1, 'one')",
        "COMMENT ON TABLE t IS 'words''s table'",
        """COMMENT ON COLUMN t.word IS 'a "word", é'""",
        "CREATE TABLE bare (id int PRIMARY KEY)",
    )
    one = pipeline(shop)
    one.once()
    comments = TargetComments(one.config)

    def bring(comments: TargetComments) -> int:
        comments.bring(one.config.subscription("lake"), one.record().tables)
        return one.delta("t").version()

    version = bring(comments)
    assert comments_of(one, "t") == ("words's table", {"word": 'a "word", é'})
    assert one.delta("bare").version() == 0
    assert bring(comments) == bring(TargetComments(one.config)) == version == 1

    shop.execute("COMMENT ON COLUMN t.id IS 'number'", "COMMENT ON TABLE t IS NULL")
    assert bring(comments) == version + 1
    expected = "words's table", {"id": "number", "word": 'a "word", é'}
    assert comments_of(one, "t") == expected, "one that is taken away stays"

    shop.execute("INSERT INTO t VALUES (2, 'two')", "ALTER TABLE t ADD note int DEFAULT 7")
    one.once()
    assert comments_of(one, "t") == expected
    one.copy("t")
    one.once()
    assert one.delta("t").history(1)[0]["operation"] == "WRITE"
    assert comments_of(one, "t") == expected
    one.assert_equal("t")
