"""Sinks by their configuration."""

from __future__ import annotations

import pickle

import pytest

from pgsluice.errors import ConfigError
from pgsluice.sinks import make_sink
from pgsluice.sinks.delta.sink import DeltaSink, encode_name


@pytest.mark.parametrize("engine", [{}, {"engine": "auto"}, {"engine": "native"}])
def test_delta_is_written_natively(engine: dict[str, str]) -> None:
    sink = make_sink({"type": "delta", "path": "lake/{schema}/{table}", **engine})
    assert sink == DeltaSink("lake/{schema}/{table}")
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "postgres", "dsn": "x"}, "the sink to another PostgreSQL comes in a later"),
        ({"type": "iceberg"}, "the Iceberg sink comes in a later"),
        ({"type": "delta", "path": "x/{table}", "engine": "spark"}, "comes in a later version"),
        ({"type": "delta", "path": "x/{table}", "engine": "steam"}, "no engine 'steam'"),
        ({"type": "delta", "path": "lake"}, "does not say where a table lies"),
        ({"type": "delta"}, "path"),
        ({"type": "delta", "path": "x/{table}", "pth": "y"}, "pth"),
        ({"type": "kafka"}, "no sink of type 'kafka'"),
        ({}, "no sink of type None"),
    ],
)
def test_what_is_not_there_is_refused_by_name(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sink(config)


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("orders", "orders"),
        ("Größe_2", "Größe_2"),
        ("a b", "a~20b"),
        ("a/b", "a~2Fb"),
        ("a%b", "a~25b"),
        ("a~b", "a~7Eb"),
        ("..", "~2E."),
        (".x", "~2Ex"),
        ("{table}", "~7Btable~7D"),
    ],
)
def test_names_are_encoded_into_one_path_segment(name: str, segment: str) -> None:
    assert encode_name(name) == segment


def test_a_name_is_put_in_once() -> None:
    sink = DeltaSink("lake/{schema}/{table}/{table}")
    assert sink.location("s", "t") == "lake/s/t/t"
