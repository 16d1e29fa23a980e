"""Prints everything that commands write to stdout, and makes foreign names safe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from pgsluice.hints import values_with_config, with_config
from pgsluice.shown import one_line, shown, shown_json, shown_lines


def say(text: str) -> None:
    """Print one message; its lines after the first are indented."""
    typer.echo(shown_lines(with_config(text)))


def say_line(text: str) -> None:
    """Print a message as one line, also if parts of it have several."""
    typer.echo(one_line(with_config(text)))


def say_picture(text: str) -> None:
    """Print aligned text of several lines; names in it have no line breaks."""
    for line in text.split("\n"):
        typer.echo(shown_lines(line))


def say_block(lines: Iterable[str]) -> None:
    """Print lines that belong together, such as statements to paste, with an indent."""
    for line in lines:
        typer.echo(f"  {shown(line)}")


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON, with the configuration's path in the commands of its texts."""
    typer.echo(shown_json(values_with_config(value), indent=indent))
