"""``pgsluice decode``: pgoutput messages, from wherever they were kept, as readable lines.

Three steps, each a module: :mod:`~pgsluice.cli.decode.inputs` finds the messages in the bytes,
:mod:`~pgsluice.cli.decode.follow` decodes each in its place, and
:mod:`~pgsluice.cli.decode.lines` or :mod:`~pgsluice.cli.decode.objects` shows it. Messages are
shown as they are read: a file may be larger than memory, and stdin need not end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.cli.decode.inputs import InputFormat
from pgsluice.cli.options import DebugOption


def decode(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="what to read; - is stdin", show_default=False),
    ],
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="hex: pg_logical_slot_peek_binary_changes as psql prints it; "
            "segment: a file of a spool; recvlogical: what pg_recvlogical writes",
        ),
    ] = InputFormat.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    full: Annotated[bool, typer.Option("--full", help="long values in full length")] = False,
    fragment: Annotated[
        bool,
        typer.Option("--fragment", help="messages without those before them: check no order"),
    ] = False,
    in_stream: Annotated[
        bool,
        typer.Option("--in-stream", help="a fragment that begins between Stream Start and Stop"),
    ] = False,
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="aborts must say when and where, as under streaming 'parallel'; "
            "without it both forms are taken",
        ),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Show pgoutput messages as readable lines, or as JSON."""
    from pgsluice.cli.decode.follow import Follower
    from pgsluice.cli.decode.inputs import messages_of, open_input
    from pgsluice.cli.decode.lines import LinePrinter
    from pgsluice.cli.decode.objects import ObjectPrinter

    follower = Follower(
        is_fragment=fragment or in_stream, in_stream=in_stream, is_parallel=parallel
    )
    printer = ObjectPrinter() if as_json else LinePrinter(is_full=full)
    with open_input(file) as source:
        for seen in messages_of(source, input_format, follower):
            printer.show(seen, follower)
            if source.path is None:
                sys.stdout.flush()  # somebody may be watching what comes
    sys.stdout.flush()  # what reads our output may have gone: be told here, not at the exit
