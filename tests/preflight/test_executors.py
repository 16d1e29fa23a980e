"""What an executor reports, on this machine: in a task it is the same function."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.commands import WriteConfig

from pgsluice.cli.commands.check import executor_findings
from pgsluice.config import Config, load_config
from pgsluice.preflight.findings import error
from pgsluice.preflight.gathering.executor import ExecutorWork, executor_work, troubles_here

pytest_plugins = ["tests.support.commands"]


@pytest.fixture
def config(write_config: WriteConfig) -> Config:
    return load_config(write_config("host=127.0.0.1 port=1"))


def troubles(work: ExecutorWork) -> dict[str, str]:
    return {each.subject: each.what for each in troubles_here(pickle.loads(pickle.dumps(work)))}


def test_a_machine_that_sees_everything_has_no_trouble(config: Config) -> None:
    with executor_work(config, has_source=False) as work:
        assert troubles(work) == {}
    assert not [*Path(config.spool.folder.parent).glob(".pgsluice-check-*")], "no mark is left"


def test_each_trouble_is_named(config: Config, tmp_path: Path) -> None:
    with executor_work(config) as work:
        folders = tuple(replace(each, mark=str(tmp_path / "nothing")) for each in work.folders)
        elsewhere = replace(work, folders=folders, version="0.0.1", sinks={"lake": {"type": "no"}})
        found = troubles(elsewhere)
        assert {"pgsluice", "spool", 'target of "lake"', "source"} == {*found}
        assert found["spool"] == f"does not see the driver's {config.spool.folder}"
        assert "and the driver has 0.0.1" in found["pgsluice"]
        assert "cannot connect for copies" in found["source"]


def test_local_tasks_need_no_question_and_an_error_here_is_enough(config: Config) -> None:
    assert [*executor_findings(config, [])] == []
    cluster = config.model_copy(update={"spark": {"spark.master": "spark://127.0.0.1:1"}})
    assert [*executor_findings(cluster, [error("target", "it is full", None)])] == []
