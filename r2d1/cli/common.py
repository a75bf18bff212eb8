"""Options that commands share, and the settings and observer they make."""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from r2d1.observers import ClosingObserver
    from r2d1.settings import Settings

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Common:
    """What every command is told about where settings are and how to speak."""

    env_file: Path | None = None
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    concurrency: int | None = None
    bandwidth_limit: int | None = None

    def settings(self) -> Settings:
        """The settings of the command line, the environment and the env file. Raises ``ConfigError``."""
        from r2d1.settings import Settings

        return Settings.from_env(
            env_file=self.env_file, concurrency=self.concurrency, bandwidth_limit=self.bandwidth_limit
        )


def common_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--env-file`` and the options of ``output_options``; all arrive first, as one ``Common``."""
    option = click.option(
        "--env-file", type=click.Path(path_type=Path), help="Read settings from this NAME=value file."
    )
    return option(output_options(command))


def output_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--json``, ``--quiet`` and ``-v``, which arrive first, as one ``Common``."""

    @click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stderr, one JSON object on stdout.")
    @click.option("-q", "--quiet", is_flag=True, help="Tell warnings and errors only.")
    @click.option("-v", "--verbose", is_flag=True, help="Tell more, with a traceback when something fails.")
    @functools.wraps(command)
    def with_common(*, as_json: bool, quiet: bool, verbose: bool, env_file: Path | None = None, **given: Any) -> R:
        return command(Common(env_file, as_json, quiet, verbose), **given)

    return with_common


def _parse_bytes(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """``10M`` → bytes; K, M and G stand for 1024 of the one before."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text.upper(), re.ASCII)
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{text!a} is no number of bytes above 0, such as 500K, 10M or 1G", ctx, param)
    return int(match[1]) << 10 * " KMG".index(match[2] or " ")


def transfer_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command with ``common_options`` two more, which come with its ``Common``."""

    @click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="Pieces in flight at once; without it as many as pay, found by measuring.",
    )
    @click.option(
        "--bandwidth-limit",
        callback=_parse_bytes,
        metavar="BYTES",
        help="Move at most so many bytes a second, both ways together; 10M is 10 MiB.",
    )
    @functools.wraps(command)
    def with_transfer(common: Common, *, concurrency: int | None, bandwidth_limit: int | None, **given: Any) -> R:
        return command(replace(common, concurrency=concurrency, bandwidth_limit=bandwidth_limit), **given)

    return with_transfer


job_id_option = click.option(
    "--job-id", required=True, metavar="ID", help="The training run: 1 to 128 bytes of text without a slash."
)


unordered_option = click.option(
    "--unordered", is_flag=True, help="Ship files newer than their sidecar, where times mean nothing."
)


def seconds_option(name: str, default: float, text: str, *, above_zero: bool = False) -> Callable[[F], F]:
    """An option that takes seconds."""
    kind = click.FloatRange(min=0, min_open=above_zero)
    return click.option(name, type=kind, default=default, show_default=True, metavar="SECONDS", help=text)


def examples(*lines: str) -> str:
    """The end of a command's help; every line of it is run by a test."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


@contextmanager
def speaking(common: Common) -> Iterator[ClosingObserver]:
    """An observer that tells events on stderr, and log records beside them, until the block is left."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(common.verbose))
    log = logging.getLogger("r2d1")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if common.verbose else logging.WARNING)
    try:
        with closing(_observer(common)) as observer:
            yield observer
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _observer(common: Common) -> ClosingObserver:
    from r2d1 import observers

    if common.as_json:
        return observers.JsonLines(quiet=common.quiet)
    if sys.stderr.isatty() and not common.quiet:
        return observers.Bar()
    return observers.PlainLines(quiet=common.quiet)


class _Formatter(logging.Formatter):
    """Log lines like event lines; tracebacks only for those who asked."""

    def __init__(self, verbose: bool) -> None:
        super().__init__("[r2d1] %(levelname)s: %(message)s")
        self._verbose = verbose

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        return super().formatException(ei) if self._verbose else ""
