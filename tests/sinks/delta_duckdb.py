"""DuckDB with its Delta extension, which reads deletion vectors.

The extension is made for one version of DuckDB, which need not be the tests'. So both are installed
by uv into an environment of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import HANGS_S

VERSION = "1.5.5"

_PROGRAM = """
import json, pathlib, sys
import duckdb, duckdb_extension_delta

(extension,) = pathlib.Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"LOAD '{extension}'")
rows = connection.sql(f"SELECT * FROM delta_scan('{sys.argv[1]}')")
names = rows.columns
print(json.dumps([dict(zip(names, row)) for row in rows.fetchall()]))
"""


def duckdb_rows(location: str) -> list[dict[str, Any]]:
    """The rows of a table on a disk, with columns that JSON has.

    Raises:
        subprocess.CalledProcessError: DuckDB cannot be had, or cannot read the table.
    """
    packages = [f"--with=duckdb=={VERSION}", f"--with=duckdb-extension-delta=={VERSION}"]
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "run", "-q", "--no-project", "--isolated", *packages,
         "python", "-c", _PROGRAM, location],
        stdout=subprocess.PIPE,
        check=True,
        timeout=HANGS_S,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows
