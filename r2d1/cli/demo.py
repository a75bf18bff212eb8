"""``r2d1 demo``: the main job on this machine, without any account."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import anyio
import click

from r2d1.cli.common import Common, examples, output_options
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.demo.story import Ending, tell
from r2d1.events import ignore
from r2d1.observers import size
from r2d1.settings import Settings

#: A stopped demo must end its children and remove its files.
_TIDY_UP_S = 10.0


@click.command(epilog=examples("r2d1 demo", "r2d1 demo --keep ./demo"))
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Play in this new or empty directory and leave everything there.",
)
@output_options
def demo(common: Common, *, keep: Path | None) -> None:
    """Train, ship, kill, pull and resume on this machine, without any account.

    A tiny network is trained in a process of its own while a courier ships its checkpoints into a bucket that is a
    directory. The trainer is killed, its newest checkpoint pulled as on a new machine, and the training resumed; its
    end is compared with that of an uninterrupted run. Takes seconds, uses no credentials, leaves nothing behind.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"{keep} is not empty")
    with _stage(keep) as root:
        settings = Settings.from_env(environ={})  # whatever credentials there are: none of them is for this
        run(common, lambda session: _play(session, common, root), settings=lambda: settings, stop_within_s=_TIDY_UP_S)


@contextmanager
def _stage(keep: Path | None) -> Iterator[Path]:
    """The directory to play in; a temporary one is removed whatever happens."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    root = Path(tempfile.mkdtemp(prefix="r2d1-demo-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


async def _play(session: Session, common: Common, root: Path) -> Result:
    started = anyio.current_time()

    def say(sentence: str) -> None:
        seconds = anyio.current_time() - started
        if common.as_json:
            session.tell.notice("info", sentence.strip())
        elif not common.quiet:
            print(f"{seconds:5.1f} s  {sentence}", flush=True)

    ending = await tell(root, say=say, observer=session.observer if common.as_json or common.verbose else ignore)
    return _result(ending, anyio.current_time() - started)


def _result(ending: Ending, seconds: float) -> Result:
    fields = {**asdict(ending), "seconds": round(seconds, 2)}
    if not ending.is_equal:
        why = "the resumed run ended elsewhere than the uninterrupted one"
        return Result((), fields, code=Exit.FAILED, why=why, hint="This is a bug: report it with the output above")
    summary = (
        f"{ending.shipped} checkpoints ({size(ending.sent_bytes)}) shipped, one machine lost, nothing else: "
        f"the resumed run equals the uninterrupted one ({seconds:.1f} s)"
    )
    return Result((), fields, summary)
