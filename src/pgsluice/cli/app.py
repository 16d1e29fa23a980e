"""The program ``pgsluice``: its commands, and how errors are reported.

Every error that pgsluice raises on purpose has an exit code. Any other exception is reported as
a bug. Neither shows a traceback without ``--debug``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pgsluice import __version__
from pgsluice.cli import decode
from pgsluice.cli.commands import (
    at,
    capture,
    check,
    copy,
    demo,
    describe,
    drop,
    explain,
    init,
    page,
    rejects,
    run,
    status,
    verify,
)
from pgsluice.cli.exit_codes import epilog
from pgsluice.cli.options import DebugOption, Invocation
from pgsluice.cli.signals import end_on_signals
from pgsluice.errors import ExitCode, PgsluiceError
from pgsluice.hints import CONFIG, name_config, with_config
from pgsluice.log_lines import Level, LogFormat, LogLine, chosen_format, format_line, log_to_stderr
from pgsluice.shown import shown_lines


class Command(TyperCommand):
    """A command with the usual usage line: ``pgsluice describe CONFIG [PUB]``.

    Versions of typer write arguments differently; some write required ones in braces.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts after the command's name: ``[OPTIONS]``, then the arguments."""
        names = [
            (each, f"{each.metavar}" if each.required else f"[{each.metavar}]")
            for each in self.params
            if each.param_type_name == "argument"
        ]
        return ["[OPTIONS]", *(name if each.nargs == 1 else f"{name}..." for each, name in names)]


app = typer.Typer(
    name="pgsluice",
    help="PostgreSQL into the lakehouse with PySpark, exactly once, without Kafka.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"pgsluice {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """PostgreSQL into the lakehouse with PySpark, exactly once, without Kafka."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (
    init.init,
    demo.demo,
    check.check,
    run.run,
    capture.capture,
    status.status,
    page.page,
    describe.describe,
    explain.explain,
    decode.decode,
    copy.copy,
    verify.verify,
    at.at,
    rejects.rejects,
    drop.drop,
):
    app.command(cls=Command, epilog=epilog(_command.__name__))(_command)


def main() -> None:
    """Run ``pgsluice`` with the arguments of this process, and exit with its code."""
    end_on_signals()
    log_to_stderr(with_config)
    # deltalake prints each attempt to reach an object store; our error says what came of it.
    os.environ.setdefault("RUST_LOG", "error")
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line of ``pgsluice``, and return its exit code."""
    invocation = Invocation()
    name_config(CONFIG)
    command = typer.main.get_command(app)
    try:
        result = command.main(
            args=list(arguments), prog_name="pgsluice", standalone_mode=False, obj=invocation
        )
        return result if isinstance(result, int) else 0
    except PgsluiceError as error:
        return _report(str(error), error.exit_code, error, invocation)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__ or error.__context__, EOFError):
            return _report(
                "no input: stdin closed while a prompt was waiting",
                ExitCode.USAGE,
                error,
                invocation,
            )
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, so nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        if _is_usage_error(error):
            return _report(_usage(error), ExitCode.USAGE, error, invocation)
        hint = "this is a bug in pgsluice; --debug shows where it comes from"
        return _report(
            f"{type(error).__name__}: {error}\n  → {hint}", ExitCode.FAILED, error, invocation
        )


def _is_usage_error(error: Exception) -> bool:
    """Whether the parser of the command line raised the error.

    Versions of typer have its classes in different modules, so it is known by its method.
    """
    return callable(getattr(error, "format_message", None))


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    what: str = error.format_message()
    what = what[:1].lower() + what[1:].rstrip(".")
    return what if context is None else f"{what}\n  → {context.command_path} --help"


def _report(text: str, code: int, error: BaseException, invocation: Invocation) -> int:
    """Print one message on stderr, and return the exit code."""
    if invocation.debug:
        typer.echo(shown_lines("".join(traceback.format_exception(error)).rstrip()), err=True)
    text = with_config(text)
    if chosen_format() is LogFormat.JSON:
        line = LogLine(Level.ERROR, "cli", text, "failed", facts={"exit_code": int(code)})
        typer.echo(format_line(line), err=True)
    else:
        typer.echo(shown_lines(f"pgsluice: {text}"), err=True)
    return code
