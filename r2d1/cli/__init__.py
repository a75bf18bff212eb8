"""The shell's door: the table of commands. A command's module is imported when the command is called, not before."""

from __future__ import annotations

import click

import r2d1
from r2d1.cli.lazy import LazyGroup

#: Command → (module that holds a function of that name, its one line in the list of commands).
COMMANDS = {
    "watch": ("r2d1.cli.watching", "Ship checkpoints as they appear in a directory."),
    "ship": ("r2d1.cli.shipping", "Ship one checkpoint."),
    "pull": ("r2d1.cli.pulling", "Bring a checkpoint or a prefix from the bucket to the disk."),
    "ls": ("r2d1.cli.looking", "List the jobs of the bucket, or the checkpoints of a job."),
    "status": ("r2d1.cli.looking", "Tell the newest checkpoint of a job and what a directory still owes."),
    "verify": ("r2d1.cli.maintaining", "Compare a checkpoint in the bucket with its manifest."),
    "reindex": ("r2d1.cli.maintaining", "Rebuild a job's D1 rows and hints from the bucket."),
    "rm": ("r2d1.cli.maintaining", "Delete a checkpoint, or the end of a timeline that was given up."),
    "gc": ("r2d1.cli.maintaining", "List (or delete) what no checkpoint needs any more."),
    "secrets": ("r2d1.cli.setup", "Show the settings that were found, masked, and what is missing."),
    "init": ("r2d1.cli.setup", "Create the table that tells of checkpoints."),
    "doctor": ("r2d1.cli.doctor", "Check that bucket, public base and D1 do what is needed of them."),
    "datasets": ("r2d1.cli.datasets", "Build, verify, publish and prefetch datasets."),
    "demo": ("r2d1.cli.demo", "Train, ship, kill, pull and resume on this machine, without any account."),
}

EPILOG = """\b
Exit codes:
  0    done, also when there was nothing to do
  1    failed
  2    configuration or usage
  3    nothing is there (pull, verify, reindex, rm)
  4    stopped with work left; the same command goes on where it stopped
  130  interrupted
"""


_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, commands_in=COMMANDS, epilog=EPILOG, context_settings=_HELP)
@click.version_option(r2d1.__version__, "--version", prog_name="r2d1")
def cli() -> None:
    """Ships training checkpoints to Cloudflare R2, tells of them in D1, and brings them back verified.

    Results go to stdout, all else to stderr. Settings come from the environment; `r2d1 secrets` shows them.
    """


def main() -> None:
    """Run the command line and end the process with its exit code."""
    cli()
