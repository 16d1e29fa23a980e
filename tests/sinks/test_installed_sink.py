"""A sink of another package is found by its entry point and fulfils the same contract."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather
from tests.sinks import snapshot_sink

from pgsluice.config import parse_config
from pgsluice.errors import ConfigError
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.testing.sink_contract import TABLE, SinkContract

ENTRY_POINTS = """\
[pgsluice.sinks]
snapshots = installed_snapshot_sink:SnapshotSinkConfig
broken = no_such_module:SinkConfig
strange = installed_snapshot_sink:SnapshotSink
bare = pgsluice.config:SinkConfig
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with a sink into a folder, and add the folder to the path."""
    site = tmp_path / "site-packages"
    information = site / "snapshot_sink-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: snapshot-sink\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(snapshot_sink.__file__, site / "installed_snapshot_sink.py")
    monkeypatch.syspath_prepend(str(site))
    yield
    monkeypatch.delitem(__import__("sys").modules, "installed_snapshot_sink", raising=False)


CONFIG = """\
[source]
dsn = "postgresql://app@db/shop"
[spool]
path = "spool"
[[subscription]]
name = "lake"
sink = {{ {} }}
"""


def mistake(sink: str) -> str:
    """The error of a configuration that has this sink."""
    with pytest.raises(ConfigError) as caught:
        parse_config(CONFIG.format(sink), Path("/etc/pgsluice.toml"))
    return str(caught.value)


@pytest.mark.usefixtures("package")
class TestInstalledSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path, package: None) -> Sink:
        return make_sink({"type": "snapshots", "path": f"{tmp_path}/lake/{{schema}}/{{table}}"})

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        files = Path(sink.location(table.namespace, table.name)).glob("*.arrow")
        newest = max(files, key=lambda path: int(path.stem))
        rows: pa.Table = feather.read_table(newest)
        return rows.to_pylist()


@pytest.mark.usefixtures("package")
def test_the_sinks_own_model_validates_its_options() -> None:
    text = CONFIG.format('type = "snapshots", path = "lake/{schema}/{table}"')
    config = parse_config(text, Path("/etc/pgsluice.toml"))
    sink = config.subscriptions[0].sink
    assert sink.target == "/etc/lake/{schema}/{table}"
    assert type(config).model_validate_json(config.model_dump_json(by_alias=True)) == config
    made = make_sink(sink.model_dump(mode="json"))
    assert pickle.loads(pickle.dumps(made)) == made
    assert 'sink: unknown key "pth"; did you mean "path"?' in mistake(
        'type = "snapshots", path = "x/{table}", pth = "y"'
    )
    assert 'sink: "path" is missing' in mistake('type = "snapshots"')


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ('type = "snapshot"', 'unknown type "snapshot"; did you mean "snapshots"?'),
        (
            'type = "kafka"',
            'unknown type "kafka"; it can be "bare", "broken", "delta", "snapshots", "strange"',
        ),
        ('type = "broken"', 'type "broken" (no_such_module:SinkConfig) cannot be loaded'),
        ('type = "strange"', 'type "strange" (installed_snapshot_sink:SnapshotSink) is no'),
        (
            'type = "bare"',
            'type "bare" (pgsluice.config:SinkConfig) does not define "make", "target"',
        ),
    ],
)
def test_the_error_names_a_type_that_cannot_be_used(sink: str, message: str) -> None:
    assert f'[subscription] "lake", sink: {message}' in mistake(sink)
