"""Sinks are made from their configuration."""

from __future__ import annotations

import pickle

import pytest

from pgsluice.errors import ConfigError
from pgsluice.sinks import make_sink
from pgsluice.sinks.delta.sink import DeltaSink, encode_name


def test_delta_is_written_natively() -> None:
    sink = make_sink({"type": "delta", "path": "/lake/{schema}/{table}"})
    assert sink == DeltaSink("/lake/{schema}/{table}")
    assert pickle.loads(pickle.dumps(sink)) == sink


def test_options_of_a_store_are_text_and_are_not_shown() -> None:
    options = {"allow_http": True, "max_retries": 3, "aws_secret_access_key": "s3cret"}
    sink = make_sink({"type": "delta", "path": "s3://a/{table}", "storage_options": options})
    assert isinstance(sink, DeltaSink)
    assert sink.storage_options == {
        "allow_http": "true",
        "max_retries": "3",
        "aws_secret_access_key": "s3cret",
    }
    assert "s3cret" not in repr(sink)
    wrong = {"aws_secret_access_key": ["s3cret"]}
    with pytest.raises(ConfigError) as caught:
        make_sink({"type": "delta", "path": "s3://a/{table}", "storage_options": wrong})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "postgres", "dsn": "x"}, '"type" = "postgres": only "delta" is supported yet'),
        ({"type": "iceberg"}, '"type" = "iceberg": only "delta" is supported yet'),
        (
            {"type": "delta", "path": "x/{table}", "engine": "spark"},
            'sink: unknown key "engine"',
        ),
        ({"type": "delta", "path": "lake"}, 'sink: "path" has to contain {table}'),
        ({"type": "delta"}, 'sink: "path" is missing'),
        ({"type": "delta", "path": "x/{table}", "pth": "y"}, 'sink: unknown key "pth"'),
        ({"type": "kafka"}, 'sink: unknown type "kafka"; it can be "delta"'),
        ({}, '"sink" needs a "type"'),
    ],
)
def test_an_unsupported_configuration_is_refused_by_name(
    config: dict[str, str], message: str
) -> None:
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
        ("_delta_log", "~5Fdelta_log"),
        ("_Delta_Log", "~5FDelta_Log"),
        ("_delta", "_delta"),
        ("{table}", "~7Btable~7D"),
    ],
)
def test_a_name_is_encoded_as_one_path_segment(name: str, segment: str) -> None:
    assert encode_name(name) == segment


def test_every_placeholder_of_a_path_is_replaced() -> None:
    sink = DeltaSink("lake/{schema}/{table}/{table}")
    assert sink.location("s", "t") == "lake/s/t/t"
