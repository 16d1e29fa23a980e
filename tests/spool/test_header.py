"""Headers of a spool's files: this version reads those of others, and others read this one's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.transactions import insert, relation

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    PartHeader,
    PartReference,
    PreparedHeader,
    ReferenceHeader,
    RelationInForce,
    SegmentHeader,
)
from pgsluice.spool.formats import encode_json
from pgsluice.spool.segments.block import Counts, RelationCounts
from pgsluice.spool.segments.header import Origin, decode_header, encode_header
from pgsluice.spool.segments.segment import expect_kind, read_header, write_segment

# Written by the first version that wrote format 2.
GOLDEN = json.loads((Path(__file__).parent / "headers_format_2.json").read_text())
# The keys that format 3, the one before, has in addition, as its first version wrote them.
ADDED = json.loads((Path(__file__).parent / "headers_format_3.json").read_text())
NAMES = {
    "part": "parts/2026010100/00000001-p1-000003.arrow",
    "part in a stream": "parts/2026010100/00000001-s1-000001.arrow",
    "prepared": "prepared/2026010100/0000000000001194-0000000B.arrow",
    "segment": "segments/2026010100/00000000000007D0-00000000000003E8-00000001.arrow",
    "reference": "segments/2026010100/0000000000000FA0-0000000000000C1C-00000001.ref.arrow",
}
ORIGIN = Origin("11111111-2222-3333-4444-555555555555", 1, ("pgsluice",), {"proto_version": "1"})


def counts(inserts: int, messages: int) -> Counts:
    size = inserts * len(insert(5, b"x"))
    return Counts({5: RelationCounts(inserts, size_bytes=size)}, messages, inserts)


def golden_facts() -> RelationFacts:
    return RelationFacts.from_json(GOLDEN[NAMES["part"]]["relations"]["5"]["facts"])


def known(facts: RelationFacts | None) -> dict[int, RelationInForce]:
    return {5: RelationInForce(relation(5), facts)}


def expected(kind: str):
    part = PartReference(NAMES["part"], GOLDEN[NAMES["prepared"]]["parts"][0]["size_bytes"], 1, 0)
    of_stream = PartReference(
        NAMES["part in a stream"],
        GOLDEN[NAMES["reference"]]["parts"][0]["size_bytes"], 4, 0, drops=((3, 4),),
    )  # fmt: skip
    match kind:
        case "part":
            return PartHeader(
                ORIGIN, counts(1, 1), known(golden_facts()),
                in_stream=False, transaction="p1", sequence=0,
            )  # fmt: skip
        case "part in a stream":
            return PartHeader(
                ORIGIN, Counts({5: RelationCounts(2, size_bytes=36)}, 4, 2), {},
                in_stream=True, transaction="s1", sequence=0,
            )  # fmt: skip
        case "prepared":
            return PreparedHeader(
                ORIGIN, counts(1, 1), known(golden_facts()), in_stream=False,
                transaction="00000001-p1", xid=11, parts=(part,), gid="it's",
                prepare_lsn=Lsn(4500),
            )  # fmt: skip
        case "segment":
            return SegmentHeader(
                ORIGIN, counts(1, 5), {}, start=Lsn(1000), end=Lsn(2000), roots={5: 4},
                first_commit_timestamp=GOLDEN[NAMES["segment"]]["first_commit_timestamp"],
            )  # fmt: skip
        case _:
            return ReferenceHeader(
                ORIGIN, Counts({5: RelationCounts(1, size_bytes=18)}, 3, 1), known(golden_facts()),
                start=Lsn(3100), end=Lsn(4000), roots={5: 4}, commit_timestamp=123,
                in_stream=True, transaction="00000001-s1", xid=9, parts=(of_stream,),
            )  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_a_header_is_readable_for_other_versions_of_the_format(kind):
    """This one reads the format before. Other versions of this one read every key, and need those
    that have no default."""
    old = {**GOLDEN[NAMES[kind]], "format": 3, **ADDED[kind]}
    number = {"number": ADDED[kind]["number"]} if "part" in kind else {}
    header = replace(expected(kind), **number, checksums=ADDED[kind]["checksums"])
    new = json.loads(encode_header(header))
    defaults = {
        "start": "0/0", "end": "0/0", "transactions": 0, "first_commit_timestamp": None,
        "last_commit_timestamp": None, "body": 1, "transaction": "", "sequence": 0, "xid": 0,
        "gid": "", "prepare_lsn": "0/0",
    }  # fmt: skip
    unread = {"transactions", "format"} | (
        {"last_commit_timestamp"} if kind == "segment" else set()
    )
    read = {**defaults, **new}
    assert {name: read[name] for name in old.keys() - unread} == {
        name: value for name, value in old.items() if name not in unread
    }
    assert new.keys() - {"crc32"} <= old.keys()
    assert decode_header(encode_json(old), "f") == header
    assert decode_header(encode_json(old), "f").checksums == ADDED[kind]["checksums"]


@pytest.mark.parametrize("kind", NAMES)
def test_a_header_is_read_as_it_was_written(kind):
    assert decode_header(encode_header(expected(kind)), "f") == expected(kind)


def test_a_file_of_another_kind_or_format_is_refused(tmp_path):
    path = tmp_path / "file.arrow"
    with path.open("wb") as file:
        write_segment(file, expected("prepared"), None)
    with pa.memory_map(str(path)) as mapped:
        header = read_header(mapped, "file.arrow")
    with pytest.raises(SpoolError, match=r"content of another kind of file: PreparedHeader"):
        expect_kind(header, SegmentHeader, "file.arrow")
    raw = {**GOLDEN[NAMES["segment"]], "format": 4}
    for other in (2, 5):
        with pytest.raises(ForeignSpool, match=f"format {other}"):
            decode_header(encode_json({**raw, "format": other}), "f")
    for wrong in ({**raw, "kind": "other"}, {**raw, "counts": None}):
        with pytest.raises(SpoolError, match="no readable header"):
            decode_header(encode_json(wrong), "f")
    for wrong in (b"[1]", b"", b"{"):
        with pytest.raises(SpoolError, match="not a JSON object"):
            decode_header(wrong, "f")
    with pytest.raises(ForeignSpool, match="format None"):
        decode_header(b"{}", "f")
    with pytest.raises(SpoolError, match="no checksum"):
        decode_header(json.dumps(raw).encode(), "f")
    with pytest.raises(SpoolError, match="checksum is wrong"):
        decode_header(encode_json(raw).replace(b"commit", b"abort"), "f")
