"""``pgsluice decode``: pgoutput messages from a file or stdin, as readable lines.

The work has three steps. :mod:`~pgsluice.cli.decode.inputs` finds the messages in the bytes,
:mod:`~pgsluice.cli.decode.follow` decodes each in its context, and
:mod:`~pgsluice.cli.decode.lines` or :mod:`~pgsluice.cli.decode.objects` prints it. Messages are
printed as they are read: a file may be larger than memory, and stdin need not end.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.cli.options import DebugOption


class InputFormat(StrEnum):
    """The format of what ``pgsluice decode`` reads; ``auto``: its first bytes say it."""

    AUTO = "auto"
    HEX = "hex"
    SEGMENT = "segment"
    RECVLOGICAL = "recvlogical"


def decode(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="the file to read; - is stdin", show_default=False),
    ],
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            help="hex: psql's output of pg_logical_slot_peek_binary_changes; "
            "segment: a file of a spool; recvlogical: the output of pg_recvlogical",
        ),
    ] = InputFormat.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    full: Annotated[bool, typer.Option("--full", help="print long values in full")] = False,
    fragment: Annotated[
        bool,
        typer.Option("--fragment", help="the beginning is missing: do not check the order"),
    ] = False,
    in_stream: Annotated[
        bool,
        typer.Option("--in-stream", help="a fragment that begins after a Stream Start"),
    ] = False,
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="require the long form of Stream Abort, as with streaming 'parallel'; "
            "by default both forms are accepted",
        ),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Print pgoutput messages as readable lines, or as JSON."""
    from pgsluice.cli.decode.follow import Follower
    from pgsluice.cli.decode.inputs import messages_of, open_input
    from pgsluice.cli.decode.lines import LinePrinter
    from pgsluice.cli.decode.objects import print_object

    follower = Follower(
        is_fragment=fragment or in_stream, in_stream=in_stream, is_parallel=parallel
    )
    show = partial(print_object, follower) if as_json else LinePrinter(follower, is_full=full).show
    with open_input(file) as stream:
        for seen in messages_of(file, stream, input_format, follower):
            show(seen)
            if str(file) == "-":
                sys.stdout.flush()  # somebody may be watching
    sys.stdout.flush()  # raises here, and not at exit, if the reader of our output has gone
