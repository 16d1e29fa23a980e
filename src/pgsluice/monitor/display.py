"""Draws on a terminal, in place, with rich. Without a terminal, nothing is drawn."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from pgsluice.hints import with_config
from pgsluice.shown import shown_lines

_REFRESH_PER_SECOND = 4


def plain_console() -> Console:
    """A console that prints text unchanged: ``[/b]`` and ``:smile:`` may be names of tables."""
    return Console(markup=False, emoji=False, highlight=False)


class Display(ABC):
    """Draws the result of :meth:`render`, within a with block and if the console is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or plain_console()
        self._live: Live | None = None

    @abstractmethod
    def render(self) -> RenderableType:
        """The content of the terminal; called by rich's thread."""

    @property
    def is_drawn(self) -> bool:
        """Whether something is drawn: the console is a terminal."""
        return self._console.is_terminal

    def __enter__(self) -> Self:
        if self.is_drawn:
            self._live = Live(
                console=self._console,
                get_renderable=self.render,
                refresh_per_second=_REFRESH_PER_SECOND,
                # What is logged stays above what is drawn; a file gets it as before.
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a sentence; on a terminal it stays above what is drawn."""
        self.print_line(shown_lines(with_config(text)))

    def print_line(self, line: str) -> None:
        """Print a line of text as it is, above what is drawn."""
        self._console.print(Text(line), soft_wrap=True)
