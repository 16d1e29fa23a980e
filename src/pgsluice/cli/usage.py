"""The usage line of each command's help."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command with the usual usage line: ``pgsluice describe CONFIG [PUB]``.

    Versions of typer write arguments differently; some write required ones in braces.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts after the command's name: ``[OPTIONS]``, then the arguments."""
        arguments = (param for param in self.params if param.param_type_name == "argument")
        return ["[OPTIONS]", *(_usage_of(argument) for argument in arguments)]


def _usage_of(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."
