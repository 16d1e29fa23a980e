"""What a terminal shows: redrawn in place by rich. Elsewhere nothing is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH_PER_SECOND = 4


class Display(ABC):
    """A context manager that shows what :meth:`render` returns, if the console is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    @abstractmethod
    def render(self) -> RenderableType:
        """What the terminal shows; called by rich's thread."""

    @property
    def is_drawn(self) -> bool:
        """Whether the console is a terminal."""
        return self._console.is_terminal

    def __enter__(self) -> Self:
        if self.is_drawn:
            self._live = Live(
                console=self._console,
                get_renderable=self.render,
                refresh_per_second=_REFRESH_PER_SECOND,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a sentence; on a terminal it stays above what is drawn."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
