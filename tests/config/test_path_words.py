"""What other programs would understand as a place is no folder beside the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.config import parse_config
from pgsluice.errors import ConfigError

_BEGIN = "[source]\ndsn = 'host=db'\n"


def _target(path: str) -> str:
    text = f"{_BEGIN}[spool]\npath = 's'\n[[subscription]]\nname = 'lake'\n"
    config = parse_config(f"{text}sink = {{ type = 'delta', path = '{path}' }}\n", Path("/etc/c"))
    return config.subscriptions[0].sink.target


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("dbfs:/lake/{schema}/{table}", "name the object store itself (s3://, abfss:// or gs://)"),
        ("dbfs:/lake/{schema}/{table}", 'the mounted folder "/dbfs/lake/{schema}/{table}"'),
        ("dbfs://lake/{table}", 'a URL of "dbfs", where pgsluice cannot write'),
        ("hdfs://names/lake/{table}", 'a URL of "hdfs", where pgsluice cannot write'),
        ("lake.x://names/{table}", 'a URL of "lake.x"'),
        ("s3:/bucket/{table}", 'a URL has two slashes, as in "s3://bucket/{table}"'),
        ("file:/lake/{table}", 'needs three slashes after "file:", as in "file:///lake/{table}"'),
        ("hdfs:{table}", 'begins with "hdfs:"'),
        ("main.{schema}.{table}", 'write "./main.{schema}.{table}" if a folder of this name'),
        ("{schema}.{table}", "the name of a catalog's table"),
        ("`main`.`{schema}`.`{table}`", "the name of a catalog's table"),
        ("C:/lake/{table}", "is a path of Windows"),
        (r"C:\lake\{table}", "is a path of Windows"),
        (r"\\server\lake\{table}", "is a path of Windows"),
        (r"lake\{schema}\{table}", "is a path of Windows"),
        ("~nobody-of-this-name/lake/{table}", "begins with ~nobody-of-this-name, and this machine"),
        ("$HOME/lake/{table}", "a variable of a shell"),
        (" /lake/{table}", "begins or ends with a blank"),
    ],
)
def test_a_target_that_is_no_folder_is_refused_with_words(path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _target(path)
    assert '[subscription] "lake", sink: "path" ' in caught.value.what
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("./main.{schema}.{table}", "/etc/main.{schema}.{table}"),
        ("{table}", "/etc/{table}"),
        ("lake.v1/{schema}.{table}", "/etc/lake.v1/{schema}.{table}"),
        ("/a:b/{table}", "/a:b/{table}"),
        ("../lake/{schema}_{table}.delta", "/etc/../lake/{schema}_{table}.delta"),
        ("abfss://c@a.dfs.core.windows.net/{table}", "abfss://c@a.dfs.core.windows.net/{table}"),
        ("S3://lake/{table}", "S3://lake/{table}"),
    ],
)
def test_folders_and_urls_are_kept(path: str, target: str) -> None:
    assert _target(path) == target


@pytest.mark.parametrize(
    "path", ["dbfs:/spool", "C:/spool", "~nobody-of-this-name/s", "$HOME/s", "hdfs://names/s"]
)
@pytest.mark.parametrize("section", ["[spool]\npath", "[spool]\npath = 's'\n[publications]\nfile"])
def test_other_paths_follow_the_same_rule(section: str, path: str) -> None:
    with pytest.raises(ConfigError, match=r'"(path|file)" (begins with|is|has) '):
        parse_config(f"{_BEGIN}{section} = '{path}'\n", Path("/etc/c"))
