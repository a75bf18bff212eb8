"""A click group that imports a command's module when it is called, and ends the process with r2d1's exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click

from r2d1.cli.ending import Exit, Result, command_of, conclude


class LazyGroup(click.Group):
    """Commands by name from a table of modules; listing them imports none."""

    def __init__(self, *args: Any, commands_in: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = getattr(import_module(self._table[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        try:
            with _ending_on_sigterm():
                code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as exc:
            exc.show()
            code = Exit.USAGE
        except click.ClickException as exc:
            code = _refused(exc, as_json="--json" in given)
        except (click.Abort, KeyboardInterrupt):
            code = Exit.INTERRUPTED
        sys.exit(code if isinstance(code, int) else Exit.DONE)


def _refused(exc: click.ClickException, *, as_json: bool) -> Exit:
    """Say what was wrong with the command line."""
    ctx = exc.ctx if isinstance(exc, click.UsageError) else None
    command = command_of(ctx)
    if ctx is not None and not as_json:
        click.echo(ctx.get_usage(), err=True)
    result = Result(code=Exit.USAGE, why=exc.format_message(), hint=f"`{command} --help` shows what it takes")
    return conclude(command, result, as_json=as_json)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM while modules are still being imported ends with the documented code, too."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(int(Exit.STOPPED))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
