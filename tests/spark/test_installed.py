"""Which sessions of Spark a run can use."""

from __future__ import annotations

import pytest

from pgsluice.errors import ConfigError
from pgsluice.spark.installed import refuse_connect

_VARIABLES = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"spark.remote": "sc://spark:15002"}, None),
        ({"spark.api.mode": "Connect"}, None),
        ({}, ("SPARK_REMOTE", "sc://spark:15002")),
        ({}, ("SPARK_API_MODE", "connect")),
        ({}, ("SPARK_CONNECT_MODE_ENABLED", "1")),
    ],
)
def test_a_session_of_connect_is_refused_in_one_sentence(
    settings: dict[str, str], variable: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    refuse_connect({"spark.master": "local[2]", "spark.api.mode": "classic"})
    if variable is not None:
        monkeypatch.setenv(*variable)
    with pytest.raises(ConfigError, match="cannot use Spark Connect"):
        refuse_connect(settings)
