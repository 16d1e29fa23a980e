"""Masked and excluded columns: their values are in no file of the lake, and verify knows them."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.errors import ConfigError, TablesUnfinished
from pgsluice.subscription.verify import Verification, verify

SECRET = "correct horse battery staple"
MASKS = """
mask_key = "env:TEST_MASK_KEY"
exclude = ["public.people.ssn"]
[subscription.mask]
"public.people.email" = "hash"
"public.people.phone" = "last4"
"public.people.note" = "null"
"public.people.born" = "hash"
"public.mails.address" = "hash"
"public.mails.sizes" = "hash"
"""
PRIVATE = ("@private.example", "secret-note", "123-45-", "555-01", "1999-12-31")

pytestmark = pytest.mark.usefixtures("local_spark")


def hashed(text: str) -> str:
    return hmac.digest(SECRET.encode(), text.encode(), "sha256").hex()


@pytest.fixture
def people(database: MakeDatabase) -> Database:
    db = database()
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, phone varchar(20), note text,"
        " ssn char(11), born date, plain text)",
        "CREATE TABLE mails (address text PRIMARY KEY, sizes int[], n numeric(9,2))",
        "ALTER TABLE people ALTER note SET STORAGE EXTERNAL, ALTER email SET STORAGE EXTERNAL",
        """INSERT INTO people SELECT n, n || '@private.example', '555-0100-' || n,
           'secret-note' || repeat('x', 3000), '123-45-' || 1000 + n, '1999-12-31', 'p' || n
           FROM generate_series(1, 20) n""",
        "INSERT INTO people (id) VALUES (99)",
        "INSERT INTO mails SELECT n || '@private.example', ARRAY[n, NULL], n"
        " FROM generate_series(1, 9) n",
    )
    return db


@pytest.fixture
def masked(people: Database, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("TEST_MASK_KEY", SECRET)
    return pipeline(people, extra=MASKS)


def rows(one: Pipeline, table: str) -> list[dict[str, Any]]:
    return pa.table(one.delta(table).to_pyarrow_table()).to_pylist()


def assert_hidden(one: Pipeline) -> None:
    """No file but those of segments and of the server has a private value, nor any the secret."""
    for path in [*one.lake.rglob("*"), *(one.spool / "subscriptions").rglob("*")]:
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content += repr(pq.read_table(path).to_pylist()).encode()
            content += repr(pq.read_metadata(path)).encode()
        assert SECRET.encode() not in content, path
        assert not [one for one in PRIVATE if one.encode() in content], path


def differing(one: Pipeline) -> set[str]:
    """The tables that verify does not find equal."""
    verified = verify(one.config, one.config.subscription("lake"), Verification())
    return {table.title for table in verified if table.is_failure}


def change(db: Database) -> None:
    db.execute(
        "UPDATE people SET plain = 'q' WHERE id % 2 = 0",  # email and note are not sent
        "UPDATE people SET email = 'new@private.example', phone = NULL WHERE id = 3",
        "UPDATE people SET id = 100 WHERE id = 4",
        "DELETE FROM people WHERE id = 5",
        "INSERT INTO people VALUES (200, 'é@private.example', '555', '', '123-45-9999', NULL, '')",
        "UPDATE mails SET address = 'moved@private.example' WHERE n = 2",
        "DELETE FROM mails WHERE address = '3@private.example'",
        "UPDATE mails SET n = n + 1",
    )


@pytest.mark.parametrize("binary", ["", "binary = true"], ids=["text", "binary"])
def test_values_are_hidden_from_the_first_copy_on(
    people: Database,
    pipeline: MakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    binary: str,
) -> None:
    monkeypatch.setenv("TEST_MASK_KEY", SECRET)
    one = pipeline(people, extra=MASKS, source=binary)
    with caplog.at_level(logging.DEBUG):
        one.once()
        change(people)
        one.once()
    found = {row["id"]: row for row in rows(one, "people")}
    assert found[1] == {
        "id": 1,
        "email": hashed("1@private.example"),
        "phone": "****00-1",
        "note": None,
        "born": hashed("1999-12-31"),
        "plain": "p1",
    }
    assert found[2]["email"] == hashed("2@private.example")
    assert (found[3]["email"], found[3]["phone"]) == (hashed("new@private.example"), None)
    assert (found[200]["phone"], found[200]["email"]) == ("****", hashed("é@private.example"))
    assert found[99] == {**dict.fromkeys(found[1]), "id": 99}
    mails = {row["address"]: row for row in rows(one, "mails")}
    assert mails[hashed("1@private.example")]["sizes"] == hashed("{1,NULL}")
    assert hashed("moved@private.example") in mails
    assert not mails.keys() & {hashed("2@private.example"), hashed("3@private.example")}
    assert mails.keys() >= {found[1]["email"]}, "hashes join across tables"
    assert_hidden(one)
    assert SECRET not in caplog.text
    assert "private.example" not in caplog.text
    assert differing(one) == set()


def test_verify_finds_a_masked_value_that_differs(masked: Pipeline, people: Database) -> None:
    masked.once()
    masked.delta("people").update(updates={"email": "'0'"}, predicate="id = 7")
    masked.delta("mails").delete(f"address = '{hashed('1@private.example')}'")
    assert differing(masked) == {"public.people", "public.mails"}


def test_another_mask_copies_the_table_again(
    masked: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked.once()
    number = masked.table("people").copy_number
    masked.once()
    assert masked.table("people").copy_number == number
    monkeypatch.setenv("TEST_MASK_KEY", SECRET * 3)
    masked.once()
    assert masked.table("people").copy_number > number
    first = next(row for row in rows(masked, "people") if row["id"] == 1)
    expected = hmac.digest((SECRET * 3).encode(), b"1@private.example", "sha256").hex()
    assert first["email"] == expected
    assert differing(masked) == set()
    masked.write(MASKS.replace('exclude = ["public.people.ssn"]', "").replace("last4", "null"))
    masked.once()
    first = next(row for row in rows(masked, "people") if row["id"] == 1)
    assert (first["ssn"], first["phone"]) == ("123-45-1001", None)


@pytest.mark.parametrize("column", ["email", "ssn"])
def test_a_hidden_column_that_is_renamed_parks_its_table(
    masked: Pipeline, people: Database, column: str
) -> None:
    masked.once()
    people.execute(
        "INSERT INTO mails VALUES ('after', '{}', 0)",
        f"ALTER TABLE people RENAME {column} TO renamed",
        "INSERT INTO people (id, renamed) VALUES (300, '123-45-3')",
    )
    with pytest.raises(TablesUnfinished):
        masked.once()
    assert masked.table("people").is_parked
    assert f"`exclude` of the subscription names column {column}" in str(
        masked.table("people").error
    )
    assert len(rows(masked, "mails")) == 10
    assert_hidden(masked)
    masked.write(MASKS.replace(f"people.{column}", "people.renamed"))
    masked.copy("people")
    masked.once()
    assert 300 in {row["id"] for row in rows(masked, "people")}
    assert_hidden(masked)


def test_a_table_with_masks_that_is_renamed_waits(masked: Pipeline, people: Database) -> None:
    masked.once()
    people.execute(
        "ALTER TABLE people RENAME TO persons",
        "INSERT INTO persons (id, email) VALUES (300, '300@private.example')",
    )
    with pytest.raises(
        ConfigError, match=r"public\.people, which has been renamed to public\.persons"
    ):
        masked.once()
    assert not Path(masked.target("persons")).exists()
    masked.write(MASKS.replace("people", "persons"))
    masked.once()
    assert hashed("300@private.example") in {row["email"] for row in rows(masked, "persons")}
    assert_hidden(masked)


def test_names_and_secrets_that_are_wrong_are_refused(
    masked: Pipeline, people: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked.write(MASKS.replace("public.mails", "public.mail"))
    with pytest.raises(ConfigError, match=r"names table public\.mail, which no publication in use"):
        masked.once()
    assert not masked.lake.exists()
    monkeypatch.setenv("TEST_MASK_KEY", "short")
    with pytest.raises(ConfigError, match="has 5 bytes"):
        masked.once()
    monkeypatch.delenv("TEST_MASK_KEY")
    with pytest.raises(ConfigError, match="TEST_MASK_KEY, which is not set"):
        masked.once()
    masked.write(MASKS.replace('"env:TEST_MASK_KEY"', f'"{SECRET}"'))
    with pytest.raises(ConfigError, match='"mask_key" has to name where') as refused:
        masked.once()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('exclude = ["public.mails.address"]', "excludes the key column address"),
        (
            'mask = { "public.mails.address" = "last4" }',
            "makes different values of column address equal",
        ),
    ],
)
def test_a_key_column_is_hidden_by_its_hash_only(
    people: Database, pipeline: MakePipeline, keys: str, why: str
) -> None:
    one = pipeline(people, extra=keys)
    with pytest.raises(TablesUnfinished):
        one.once()
    assert why in str(one.table("mails").error)


def test_filters_see_the_values_and_leaf_partitions_are_masked(
    people: Database, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MASK_KEY", SECRET)
    people.execute(
        "CREATE TABLE parts (email text, id int, PRIMARY KEY (email, id)) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high (id int, junk int, email text, PRIMARY KEY (email, id))",
        "ALTER TABLE high DROP COLUMN junk",
        "ALTER TABLE parts ATTACH PARTITION high FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parts SELECT n % 2 || '@private.example', n FROM generate_series(90, 110) n",
    )
    extra = 'publications = ["p"]\nmask_key = "env:TEST_MASK_KEY"\n'
    one = pipeline(people, extra=f'{extra}mask = {{ "public.parts.email" = "hash" }}')
    one.path.write_text(
        one.path.read_text() + '[publications]\nsql = """CREATE PUBLICATION p '
        "FOR TABLE parts WHERE (email = '1@private.example')"
        ' WITH (publish_via_partition_root)"""\n'
    )
    one.once()
    people.execute(
        "INSERT INTO parts SELECT n % 2 || '@private.example', n FROM generate_series(50, 59) n",
        "UPDATE parts SET email = '1@private.example' WHERE id = 100",
        "UPDATE parts SET id = id + 60 WHERE id = 51",
        "DELETE FROM parts WHERE id = 101",
    )
    one.once()
    assert {row["email"] for row in rows(one, "parts")} == {hashed("1@private.example")}
    ids = people.execute("SELECT id FROM parts WHERE email = '1@private.example'")
    assert sorted(row["id"] for row in rows(one, "parts")) == sorted(number for (number,) in ids)
    assert_hidden(one)
    assert differing(one) == set()


def test_a_change_log_has_masked_values(
    people: Database, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MASK_KEY", SECRET)
    one = pipeline(people, extra=f'mode = "changelog"\n{MASKS}')
    one.once()
    change(people)
    one.once()
    emails = {row["email"] for row in rows(one, "people") if row["id"] == 3}
    assert emails == {hashed("3@private.example"), hashed("new@private.example")}
    assert_hidden(one)
    assert differing(one) == set()


@pytest.mark.parametrize("mode", ['mode = "changelog"', 'deleted_column = "gone_at"'])
def test_rows_that_are_kept_do_not_outlive_their_mask(
    people: Database, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("TEST_MASK_KEY", SECRET)
    one = pipeline(people, extra=f"{mode}\n{MASKS}".replace('"public.people.note" = "null"', ""))
    one.once()
    people.execute("DELETE FROM people WHERE id = 5")
    one.once()
    assert "secret-note" in str(rows(one, "people"))
    one.write(f"{mode}\n{MASKS}")
    with pytest.raises(TablesUnfinished):
        one.once()
    assert one.table("people").is_parked
    assert not one.table("mails").is_parked
    assert run_command(["copy", str(one.path), "--yes", "people"]) == 0
    one.once()
    assert "secret-note" not in str(rows(one, "people"))
    assert hashed("1@private.example") in str(rows(one, "people"))
    assert differing(one) == set()
