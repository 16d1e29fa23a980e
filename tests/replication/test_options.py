"""What START_REPLICATION is asked, by the server's version."""

from __future__ import annotations

import pytest

from pgsluice.errors import SourceRefused
from pgsluice.replication import PgoutputOptions
from pgsluice.replication.options import newest_proto_version


@pytest.mark.parametrize(
    ("version", "proto", "streaming"),
    [
        (100023, 1, "off"),
        (130022, 1, "off"),
        (140019, 2, "on"),
        (150014, 3, "on"),
        (160010, 4, "parallel"),
        (180004, 4, "parallel"),
    ],
)
def test_the_default_is_the_newest_that_the_server_knows(
    version: int, proto: int, streaming: str
) -> None:
    resolved = PgoutputOptions(("p",)).resolve(version)
    assert (resolved.proto_version, resolved.streaming) == (proto, streaming)
    assert newest_proto_version(version) == proto


def test_a_lower_protocol_streams_only_as_far_as_it_can() -> None:
    assert PgoutputOptions(("p",), proto_version=1).resolve(180004).streaming == "off"
    assert PgoutputOptions(("p",), proto_version=3).resolve(180004).streaming == "on"


@pytest.mark.parametrize(
    ("options", "version", "command"),
    [
        (
            PgoutputOptions(("p", 'a"b', "it's, c")),
            100023,
            """(proto_version '1', publication_names '"p","a""b","it''s, c"')""",
        ),
        (
            PgoutputOptions(("p",), proto_version=1, streaming="off"),
            180004,
            """(proto_version '1', publication_names '"p"')""",
        ),
        (
            PgoutputOptions(("p",), two_phase=True, binary=True, messages=True, origin="none"),
            180004,
            (
                """(proto_version '4', publication_names '"p"', """
                "two_phase 'true', binary 'true', messages 'true', origin 'none')"
            ),
        ),
        (
            PgoutputOptions(("p",), messages=True, streaming="on"),
            180004,
            (
                """(proto_version '4', publication_names '"p"', streaming 'on', """
                "messages 'true')"
            ),
        ),
    ],
)
def test_the_command_has_only_what_is_asked(
    options: PgoutputOptions, version: int, command: str
) -> None:
    assert options.to_command(version) == command


@pytest.mark.parametrize(
    ("options", "version", "what"),
    [
        (PgoutputOptions(("p",), proto_version=4), 150014, "proto_version 4"),
        (PgoutputOptions(("p",), streaming="on"), 130022, "streaming = on"),
        (PgoutputOptions(("p",), streaming="parallel"), 150014, "streaming = parallel"),
        (PgoutputOptions(("p",), proto_version=2, two_phase=True), 180004, "two_phase"),
        (PgoutputOptions(("p",), binary=True), 130022, "binary"),
        (PgoutputOptions(("p",), messages=True), 130022, "messages"),
        (PgoutputOptions(("p",), origin="none"), 150014, "origin = none"),
        (PgoutputOptions(()), 180004, "without publications"),
    ],
)
def test_what_the_server_cannot_do_is_refused(
    options: PgoutputOptions, version: int, what: str
) -> None:
    with pytest.raises(SourceRefused, match=what):
        options.resolve(version)
