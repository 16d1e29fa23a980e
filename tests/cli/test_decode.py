"""``pgsluice decode``: every format of input, and the errors for malformed input."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.commands import Command
from tests.support.corpus import CAPTURES_BY_ID, Capture
from tests.support.databases import Database, MakeDatabase
from tests.support.examples import examples
from tests.support.scripted_server import RELATION, commit, plain, prepare, receive, row, stream
from tests.support.transactions import facts, new_spool, raw, relation, transaction
from tests.support.waiting import HANGS_S

from pgsluice.cli.app import run_command
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    PartHeader,
    PartReference,
    RawMessages,
    ReferenceHeader,
    SpoolReader,
    SpoolWriter,
)
from pgsluice.spool.segments.block import Counts
from pgsluice.spool.segments.header import Origin
from pgsluice.spool.segments.segment import write_segment
from pgsluice.wire import Insert, RelationColumn, StreamAbort, StreamStart, StreamStop, TupleData

PLAIN = CAPTURES_BY_ID["18-proto1-messages"]
PARALLEL = CAPTURES_BY_ID["18-proto4-streaming_parallel-binary"]
PARALLEL_ROWS = PARALLEL.messages()
TRICKY = "E'a\\nb\\x1b[31m''c', 'NULL', NULL, repeat('x', 9000)"


def wide(value: str, xid: int) -> Insert:
    return Insert(RELATION.oid, TupleData.of(value, "x"), xid)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "input"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def make(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text, d text)",
        "CREATE PUBLICATION p FOR TABLE t",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        f"INSERT INTO t VALUES (1, {TRICKY}), (10, {TRICKY})",
        "UPDATE t SET id = 2 WHERE id = 1",
        "DELETE FROM t",
    )


PEEK = (
    "pg_logical_slot_peek_binary_changes('s', NULL, NULL, 'proto_version', '1',"
    " 'publication_names', 'p')"
)


class TestWhatPsqlPrints:
    @pytest.mark.parametrize(
        "options",
        [
            [],
            ["-A", "-t"],
            ["-A", "-F", "\t"],
            ["-x"],
            ["-x", "-A"],
            ["--csv"],
            ["-P", "border=2"],
            ["-P", "border=2", "-P", "linestyle=unicode"],
            ["-x", "-P", "border=2", "-P", "linestyle=unicode"],
            ["-c", "\\timing on"],
        ],
        ids=" ".join,
    )
    def test_in_every_format(
        self, pg18: Any, database: MakeDatabase, pgsluice: Command, tmp_path: Path, options: Any
    ) -> None:
        shop = database(pg18)
        make(shop)

        def decoded(columns: str, options: list[str]) -> list[dict[str, Any]]:
            program = str(pg18.program("psql"))
            query = f"SELECT {columns} FROM {PEEK}"
            command = [program, "-X", *options, "-c", query, shop.dsn]
            done = subprocess.run(command, capture_output=True, check=True)
            outcome = pgsluice("decode", "--json", write(tmp_path, done.stdout))
            assert (outcome.code, outcome.err) == (0, "")
            return objects(outcome.out)

        plain = decoded("*", ["-At"])
        assert [says["tag"] for says in plain] == list("BRIICBUCBDDC")
        assert plain[2]["new"] == {
            "id": "1", "a": "a\nb\x1b[31m'c", "b": "NULL", "c": None, "d": "x" * 9000
        }  # fmt: skip
        assert (plain[6]["key"], plain[6]["new"]["id"]) == ({"id": "1"}, "2")
        assert plain[9]["key"] == {"id": "10"}
        assert plain[1]["lsn"] is None or plain[1]["lsn"] != "0/0"
        assert decoded("*", options) == plain
        without = [says | {"lsn": None} for says in plain]
        assert decoded("data", options) == without

    def test_as_bare_hexadecimal(self, pgsluice: Command, tmp_path: Path) -> None:
        lines = "".join(data.hex() + "\n" for _, data in PLAIN.messages())
        outcome = pgsluice("decode", write(tmp_path, lines), "--json")
        assert objects(outcome.out) == [says | {"lsn": None} for says in PLAIN.objects()]

    @pytest.mark.parametrize("capture", [PLAIN, PARALLEL], ids=["plain", "parallel"])
    def test_the_corpus(self, pgsluice: Command, tmp_path: Path, capture: Capture) -> None:
        outcome = pgsluice("decode", write(tmp_path, capture.text()), "--json")
        assert objects(outcome.out) == capture.objects()

    def test_empty_input(self, pgsluice: Command, tmp_path: Path) -> None:
        nothing = " lsn | xid | data \n-----+-----+------\n(0 rows)\n\n"
        for text in ("", nothing):
            outcome = pgsluice("decode", write(tmp_path, text))
            assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


class TestPgRecvlogical:
    def test_its_output(
        self, pg18: Any, database: MakeDatabase, pgsluice: Command, tmp_path: Path
    ) -> None:
        shop = database(pg18)
        make(shop)
        ((end,),) = shop.execute("SELECT pg_current_wal_flush_lsn()::text")
        path = tmp_path / "received"
        command = [
            str(pg18.program("pg_recvlogical")), "--start", "-d", shop.dsn, "-S", "s", "-f", path,
            "--endpos", end, "--no-loop", "-o", "proto_version=1", "-o", "publication_names=p",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=HANGS_S)
        outcome = pgsluice("decode", "--json", path)
        assert (outcome.code, outcome.err) == (0, "")
        says = objects(outcome.out)
        assert "".join(line["tag"] for line in says) == "BRIICBUCBDDC"
        assert says[2]["new"]["a"] == "a\nb\x1b[31m'c"
        assert says[2]["new"]["d"] == "x" * 9000

    @pytest.mark.parametrize("last", [b"\n", b""], ids=["newline", "none"])
    @pytest.mark.parametrize("capture", [PLAIN, PARALLEL], ids=["plain", "parallel"])
    def test_the_corpus(
        self, pgsluice: Command, tmp_path: Path, capture: Capture, last: bytes
    ) -> None:
        content = b"\n".join(data for _, data in capture.messages()) + last
        outcome = pgsluice("decode", write(tmp_path, content), "--json")
        assert objects(outcome.out) == [says | {"lsn": None} for says in capture.objects()]

    def test_a_message_larger_than_one_read(self, pgsluice: Command, tmp_path: Path) -> None:
        row = Insert(7, TupleData.of("a\n" * 2_000_000)).encode()
        path = write(tmp_path, relation(7) + b"\n" + row + b"\n" + row + b"\n")
        outcome = pgsluice("decode", path, "--fragment", "--json")
        assert [len(says["new"]["v"]) for says in objects(outcome.out)[1:]] == [4_000_000] * 2

    def test_messages_are_printed_while_more_are_awaited(self) -> None:
        """``pg_recvlogical … | pgsluice decode -`` needs this."""
        messages = [data for _, data in PLAIN.messages()]
        with subprocess.Popen(
            [sys.executable, "-m", "pgsluice", "decode", "--format", "recvlogical", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False,
        ) as process:  # fmt: skip
            assert process.stdin
            assert process.stdout
            process.stdin.write(messages[0] + b"\n")
            process.stdin.flush()
            assert b" B Begin commits at " in process.stdout.readline()
            process.stdin.write(messages[1] + b"\n")
            process.stdin.flush()
            assert b" Y Type public.mood " in process.stdout.readline()
            process.stdin.close()
            assert process.wait() == 0


class TestFilesOfASpool:
    def test_a_segment(self, pgsluice: Command, tmp_path: Path) -> None:
        """It has the relations in force before its first message."""
        spool = new_spool(tmp_path / "spool")
        row = Insert(7, TupleData.of("x")).encode()
        with SpoolWriter(spool) as writer:
            writer.append(raw(transaction(2000, [relation(7), facts(7), row])))
            writer.append(raw(transaction(3000, [row], xid=8)))
        paths = [spool.path / segment.name for segment in SpoolReader(spool).all_segments()]
        first, second = (objects(pgsluice("decode", path, "--json").out) for path in paths)
        assert [says["tag"] for says in first] == list("BR#IC")
        assert (first[2]["message"], first[2]["oid"], first[2]["facts"]) == ("Facts", 7, None)
        assert second == [
            {"tag": "B", "message": "Begin", "lsn": "0/BA4", "xid": 8, "final_lsn": "0/BAE",
             "commit_timestamp": "2000-01-01T00:00:00.003000Z"},
            {"tag": "I", "message": "Insert", "lsn": "0/BA4", "xid": 8, "oid": 7,
             "schema": "public", "table": "t7", "new": {"v": "x"}},
            {"tag": "C", "message": "Commit", "lsn": "0/BA4", "xid": 8, "flags": 0,
             "commit_lsn": "0/BAE", "end_lsn": "0/BB8",
             "commit_timestamp": "2000-01-01T00:00:00.003000Z"},
        ]  # fmt: skip

    def test_a_reference_shows_its_parts_and_what_was_aborted(
        self, pgsluice: Command, tmp_path: Path
    ) -> None:
        part, reference = self.write_stream(tmp_path)
        outcome = pgsluice("decode", reference)
        assert [line.split(maxsplit=2)[1:] for line in outcome.out.splitlines()] == [
            ["7", "R Relation public.t9 oid 9 (v text) identity default"],
            ["7", '# Facts public.t9 {"a": 1}'],
            ["7", "I Insert public.t9 (v=kept)"],
            ["7:8", "I Insert public.t9 (v=gone)  (taken back)"],
        ]
        assert pgsluice("decode", part).out.count("public.t9 (v=") == 2

        with reference.open("rb") as stream:
            command = [sys.executable, "-m", "pgsluice", "decode", "-"]
            done = subprocess.run(command, stdin=stream, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pgsluice cannot find that spool when it reads stdin" in done.stderr

        part.unlink()
        outcome = pgsluice("decode", reference)
        assert (outcome.code, outcome.out) == (1, "")
        assert str(part) in outcome.err

    @staticmethod
    def write_stream(folder: Path) -> tuple[Path, Path]:
        """A part and a reference, as capture writes them for a streamed transaction."""
        of_7 = (7).to_bytes(4, "big")
        in_stream = relation(9)[:1] + of_7 + relation(9)[1:]
        kept = Insert(9, TupleData.of("kept"), xid=7).encode()
        gone = Insert(9, TupleData.of("gone"), xid=8).encode()
        known = facts(7)[:1] + of_7 + facts(9, '{"a": 1}')[1:]
        messages = RawMessages.from_messages([(0, in_stream), (0, known), (300, kept), (301, gone)])
        part = folder / "parts" / "20260101T00" / "part.arrow"
        reference = folder / "segments" / "20260101T00" / "reference.ref.arrow"
        for path in (part, reference):
            path.parent.mkdir(parents=True)
        of_part = PartHeader(
            Origin("id", 1), Counts(messages=4), {}, in_stream=True, transaction="a", sequence=0
        )
        with part.open("wb") as file:
            write_segment(file, of_part, messages)
        named = PartReference(
            "parts/20260101T00/part.arrow", part.stat().st_size, 4, 0, drops=((3, 4),)
        )
        header = ReferenceHeader(
            Origin("id", 1), Counts(), {}, start=Lsn(1), end=Lsn(400), roots={},
            commit_timestamp=0, in_stream=True, transaction="a", xid=7, parts=(named,),
        )  # fmt: skip
        with reference.open("wb") as file:
            write_segment(file, header, None)
        return part, reference

    @pytest.mark.parametrize("segment_bytes", [150, 2**20])
    def test_files_of_a_streamed_transaction(
        self, pgsluice: Command, tmp_path: Path, segment_bytes: int
    ) -> None:
        """Two savepoints; the second added a column and was rolled back."""
        wider = replace(RELATION, columns=(*RELATION.columns, RelationColumn(0, "v", 25, -1)))
        script = [
            *stream(7, RELATION, row("1"), replace(RELATION, xid=71), row("2", 71)),
            *stream(7, row("3"), replace(wider, xid=72), wide("4", 72), is_first=False),
            *stream(7, wide("5", 72), wide("6", 73), is_first=False),
            *plain(8, 2000, RELATION, row("7")),
            StreamAbort(7, 73).encode(),
            StreamAbort(7, 72).encode(),
            *stream(7, RELATION, row("8"), is_first=False),
            commit(7, 2100),
        ]
        spool = tmp_path / "spool"
        receive(spool, script, segment_bytes=segment_bytes)
        (reference,) = spool.glob("segments/*/*.ref.arrow")
        lines = pgsluice("decode", reference).out.splitlines()
        kept = [line for line in lines if not line.endswith("(taken back)")]
        assert [line.split(maxsplit=3)[1::2] for line in kept] == [
            ["7", "Relation public.t oid 16394 (id int4 key) identity default"],
            ["7", "Insert public.t (id=1)"],
            ["7:71", "Relation public.t oid 16394 (id int4 key) identity default"],
            ["7:71", "Insert public.t (id=2)"],
            ["7", "Insert public.t (id=3)"],
            ["7", "Relation public.t oid 16394 (id int4 key) identity default"],
            ["7", "Insert public.t (id=8)"],
        ]
        taken_back = [line.split()[1] for line in lines if line not in kept]
        assert set(taken_back) <= {"7:72", "7:73"}

    @pytest.mark.parametrize("segment_bytes", [150, 2**20])
    def test_files_of_a_prepared_transaction(
        self, pgsluice: Command, tmp_path: Path, segment_bytes: int
    ) -> None:
        """Also with a relation that an earlier transaction announced."""
        spool = tmp_path / "spool"
        script = [*plain(8, 2000, RELATION, row("1")), *prepare(7, "g", 2100, row("2"), row("3"))]
        receive(spool, script, segment_bytes=segment_bytes)
        (marker,) = spool.glob("prepared/*/*")
        rows = objects(pgsluice("decode", marker, "--json").out)
        assert [(row["tag"], row["xid"], row["table"], row["new"]) for row in rows] == [
            ("I", 7, "t", {"id": "2"}),
            ("I", 7, "t", {"id": "3"}),
        ]

    def test_the_error_for_a_wrong_byte_names_its_place_in_the_file(
        self, pgsluice: Command, tmp_path: Path
    ) -> None:
        spool = new_spool(tmp_path / "spool")
        row = bytearray(Insert(7, TupleData.of("findme")).encode())
        row[row.index(b"findme") - 5] = ord("?")
        with SpoolWriter(spool) as writer:
            writer.append(raw(transaction(2000, [relation(7), bytes(row)])))
        (info,) = SpoolReader(spool).all_segments()
        path = spool.path / info.name
        kind = path.read_bytes().index(b"findme") - 5
        outcome = pgsluice("decode", path)
        assert outcome.code == 1
        assert f"byte {kind}: Insert message ('I'), offset 8: expected the kind" in outcome.err

        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        outcome = pgsluice("decode", path)
        assert outcome.code == 1
        assert f"{path} is not a readable file of a spool" in outcome.err


COMMIT = "\\x43" + "00" * 25


class TestWrongInput:
    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("\\x4242\n", "line 1, byte 4: Begin message ('B'), offset 1"),
            ("\\x5a\n", "line 1, byte 2: pgoutput message, offset 0"),
            ("\\x\n", "line 1, byte 2: pgoutput message, offset 0"),
            ("\n 0/1 | 7 | \\x490000000g\n", ("line 2, byte 23: expected a hexadecimal digit of the"
             " message's byte 4")),
            ("\\x49000\n", ("line 1, byte 7: expected a hexadecimal digit of the message's byte 2,"
             " got the end")),
            (COMMIT + "\n", "line 1, byte 2: Commit message (C) cannot come here"),
            ("B\\000\\000\n", "line 1, byte 0: expected a row as psql prints it"),
            ("\n  hello, you\n", "line 2, byte 3: expected a row as psql prints it"),
            ("\\x45\n[1]", "line 1, byte 2: StreamStop message (E) cannot come here"),
            (b"B" + bytes(20) + b"\nQ", "byte 22: pgoutput message, offset 0"),
            (b"B" + bytes(20) + b"C", "byte 21: expected the newline that pg_recvlogical writes"),
            (b"B" + bytes(9), "byte 9: Begin message ('B'), offset 9"),
            (b"S\0\0\0\1\1\nI\0\0\0\1\0\0\0\1N\0\1x\n",
             "byte 19: Insert message ('I'), offset 12: expected the kind of column 0"),
            (b"ARROW1 and nothing else", "is not a readable file of a spool"),
        ],
    )  # fmt: skip
    def test_names_its_byte(
        self, pgsluice: Command, tmp_path: Path, text: str | bytes, place: str
    ) -> None:
        path = write(tmp_path, text)
        outcome = pgsluice("decode", path)
        assert outcome.code == 1
        assert place in outcome.err
        assert outcome.err.startswith(f"pgsluice: {path}")

    def test_messages_before_the_error_are_printed(self, pgsluice: Command, tmp_path: Path) -> None:
        rows = PLAIN.text().splitlines()[:3]
        outcome = pgsluice("decode", write(tmp_path, "\n".join([*rows, "\\x00"])))
        assert outcome.code == 1
        assert len(outcome.out.splitlines()) == 3

    def test_a_reader_that_ends_early_is_no_bug(self, tmp_path: Path) -> None:
        path = write(tmp_path, PARALLEL.text())
        command = f"{sys.executable} -m pgsluice decode --full {path} | head -n 1"
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert (len(done.stdout.splitlines()), done.stderr) == (1, "")

    def test_usage_is_exit_code_2(self, pgsluice: Command, tmp_path: Path) -> None:
        assert pgsluice("decode").code == 2
        assert pgsluice("decode", tmp_path / "nope").code == 2
        assert pgsluice("decode", tmp_path).code == 2
        assert pgsluice("decode", "--format", "xml", "-").code == 2

    @settings(
        max_examples=examples(60),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def test_any_bytes_are_decoded_or_refused(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: st.DataObject
    ) -> None:
        """Malformed or not: printed, or refused with a place; never a bug."""
        kind = data.draw(st.sampled_from(["auto", "hex", "recvlogical", "segment"]))
        start = data.draw(st.integers(0, 200))
        rows = PARALLEL_ROWS[start : start + 20]
        text = data.draw(st.booleans())
        whole = (
            "".join(f"{lsn}|\\x{message.hex()}\n" for lsn, message in rows).encode()
            if text
            else b"\n".join(message for _, message in rows)
        )
        content = bytearray(whole)
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
            content[at] = data.draw(st.integers(0, 255))
        path = write(tmp_path, bytes(content))
        options = data.draw(st.sets(st.sampled_from(["--json", "--fragment", "--parallel"])))
        code = run_command(["decode", str(path), "--format", kind, *sorted(options)])
        captured = capsys.readouterr()
        assert code in (0, 1), captured.err
        assert "this is a bug" not in captured.err


class TestLines:
    def test_a_fragment_names_columns_by_number(self, pgsluice: Command, tmp_path: Path) -> None:
        path = write(tmp_path, "\\x490000400a4e0001740000000131\n")
        assert pgsluice("decode", path).code == 1
        assert "--fragment" in pgsluice("decode", path).err
        outcome = pgsluice("decode", path, "--fragment")
        assert outcome.out.split() == ["-", "I", "Insert", "relation", "16394", "($1=1)"]

    def test_a_fragment_from_within_a_stream(self, pgsluice: Command, tmp_path: Path) -> None:
        row = Insert(7, TupleData.of("x"), xid=9).encode()
        path = write(tmp_path, f"\\x{row.hex()}\n\\x{StreamStop().encode().hex()}\n")
        lines = pgsluice("decode", path, "--in-stream").out.splitlines()
        assert [line.split(maxsplit=1)[1].strip() for line in lines] == [
            ":9 I Insert relation 7 ($1=x)", "E StreamStop"
        ]  # fmt: skip
        assert pgsluice("decode", path, "--fragment").code == 1

    def test_parallel_refuses_the_short_abort(self, pgsluice: Command, tmp_path: Path) -> None:
        path = write(tmp_path, "\\x410000000700000007\n")
        assert pgsluice("decode", path).code == 0
        assert pgsluice("decode", path, "--parallel").code == 1

    def test_values_cannot_send_commands_to_the_terminal(
        self, pgsluice: Command, tmp_path: Path
    ) -> None:
        row = Insert(7, TupleData.of("\x1b[31m", b"\x00\x1b", None, "it's", "NULL", "", "a\\b"))
        path = write(tmp_path, f"\\x{row.encode().hex()}\n")
        line = pgsluice("decode", path, "--fragment").out
        assert line.endswith(
            "($1='\\x1b[31m', $2=\\x001b, $3=NULL, $4='it''s', $5='NULL', $6='', $7='a\\\\b')\n"
        )
        assert line[:-1].isprintable()

    def test_long_values_are_cut_without_full(self, pgsluice: Command, tmp_path: Path) -> None:
        row = Insert(7, TupleData.of("ü" * 100, b"\1" * 100)).encode()
        path = write(tmp_path, f"\\x{row.hex()}\n")
        cut = pgsluice("decode", path, "--fragment").out
        assert f"$1='{'ü' * 80}…' (200 bytes), $2=\\x{'01' * 40}… (100 bytes)" in cut
        full = pgsluice("decode", path, "--fragment", "--full").out
        assert f"$1={'ü' * 100}, $2=\\x{'01' * 100})" in full

    def test_on_a_terminal_it_has_colours(self, tmp_path: Path) -> None:
        path = write(tmp_path, PLAIN.text())
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "pgsluice", "decode", str(path)]
        with subprocess.Popen(command, stdout=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            try:
                while more := os.read(ours, 65536):
                    shown += more
            except OSError:
                pass  # Linux says so when the other side is closed
            assert process.wait() == 0
        os.close(ours)
        text = shown.decode()
        assert re.search(r"\x1b\[32m\S+ +\d+ I Insert public\.orders ", text)
        assert re.search(r"\x1b\[31m\S+ +\d+ D Delete public\.orders key ", text)


class TestObjects:
    def test_values(self, pgsluice: Command, tmp_path: Path) -> None:
        row = TupleData(b"tnubt", (b"text", None, None, b"\0\xff", b"\xff"))
        path = write(tmp_path, f"\\x{Insert(7, row).encode().hex()}\n")
        (says,) = objects(pgsluice("decode", path, "--fragment", "--json").out)
        assert says["new"] == {
            "$1": "text",
            "$2": None,
            "$3": {"unchanged": True},
            "$4": {"base64": base64.b64encode(b"\0\xff").decode()},
            "$5": {"text_base64": base64.b64encode(b"\xff").decode()},
        }

    @pytest.mark.parametrize(
        "content",
        ['[1,[2],"x"]', '{"a":"\\ud800"}', "[" * 900 + "]" * 900],
        ids=["array", "half of a pair", "nested"],
    )
    def test_facts_are_printed_as_they_are(
        self, pgsluice: Command, tmp_path: Path, content: str
    ) -> None:
        path = write(tmp_path, f"\\x{facts(7, content).hex()}\n")
        (says,) = objects(pgsluice("decode", path, "--fragment", "--json").out)
        assert says["facts"] == json.loads(content)

    @pytest.mark.parametrize(
        "content",
        ["[" * 100_000, "1" * 5000, "NaN", "[1e999]"],
        ids=["nested", "digits", "NaN", "infinity"],
    )
    def test_facts_that_are_no_json_are_refused(
        self, pgsluice: Command, tmp_path: Path, content: str
    ) -> None:
        path = write(tmp_path, f"\\x{facts(7, content).hex()}\n")
        outcome = pgsluice("decode", path, "--fragment", "--json")
        assert outcome.code == 1
        assert "offset 1: expected a relation's OID and JSON" in outcome.err

    def test_a_timestamp_beyond_the_calendar_is_a_number(
        self, pgsluice: Command, tmp_path: Path
    ) -> None:
        begin = b"B" + bytes(8) + (2**62).to_bytes(8, "big") + bytes(4)
        path = write(tmp_path, f"\\x{begin.hex()}\n\\x{StreamStart(1, True).encode().hex()}\n")
        (says, _) = objects(pgsluice("decode", path, "--fragment", "--json").out)
        assert says["commit_timestamp"] == 2**62
