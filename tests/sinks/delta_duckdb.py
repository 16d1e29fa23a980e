"""DuckDB with its Delta extension, which reads deletion vectors.

The extension is made for one version of DuckDB, which need not be the tests'. So both are installed
by uv into an environment of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.waiting import HANGS_S

VERSION = "1.5.5"

_PROGRAM = """
import json, pathlib, sys
import duckdb, duckdb_extension_delta

(extension,) = pathlib.Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"LOAD '{extension}'")
location, options = sys.argv[1], json.loads(sys.argv[2])
if options:
    import duckdb_extension_httpfs
    folder = pathlib.Path(duckdb_extension_httpfs.__file__).parent
    (extension,) = folder.rglob("httpfs.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{options['aws_access_key_id']}',"
        f" SECRET '{options['aws_secret_access_key']}', REGION '{options['aws_region']}',"
        f" ENDPOINT '{options['aws_endpoint_url'].removeprefix('http://')}',"
        " USE_SSL false, URL_STYLE 'path')"
    )
rows = connection.sql(f"SELECT * FROM delta_scan('{location}')")
names = rows.columns
print(json.dumps([dict(zip(names, row)) for row in rows.fetchall()]))
"""


def duckdb_rows(
    location: str, options: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The rows of a table, with columns that JSON has.

    Args:
        options: of S3, if the table lies there, as :mod:`tests.support.object_stores` has them.

    Raises:
        subprocess.CalledProcessError: DuckDB cannot be had, or cannot read the table.
    """
    names = ("duckdb", "duckdb-extension-delta", "duckdb-extension-httpfs")
    packages = [f"--with={name}=={VERSION}" for name in names]
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "run", "-q", "--no-project", "--isolated", *packages,
         "python", "-c", _PROGRAM, location, json.dumps(dict(options))],
        stdout=subprocess.PIPE,
        check=True,
        timeout=HANGS_S,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows
