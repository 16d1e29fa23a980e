"""Arrow does without pandas in processes of pgsluice's own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import HANGS_S

_PROGRAM = """
import sys
from pgsluice.spark.session.loading import load_arrow_without_pandas
load_arrow_without_pandas()
import pyarrow as pa
pa.array([{"a": [1]}, None])
assert "pandas" not in sys.modules
assert pa.table({"a": [1]}).to_pandas().size == 1, "who asks for pandas gets it"
"""


def test_arrow_does_not_load_pandas_by_itself() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=HANGS_S)
