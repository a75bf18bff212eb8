"""The commands of ``r2d1 datasets``: what they print, what they write, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from r2d1.cli import datasets as commands
from r2d1.datasets import verify_spec
from tests.datasets.making import GOLDEN, files_of


def run(*arguments):
    return CliRunner().invoke(commands.datasets, [str(one) for one in arguments], catch_exceptions=False)


def build(out, *more, cache="cache"):
    return run(
        *("build", "--mix", "golden-a-bpe", "--out", out, "--cache", GOLDEN / cache),
        *("--registry", GOLDEN / "registry.json", "--unit", 4, "--samples-per-shard", 16, *more),
    )


def test_build_gives_the_golden_files(tmp_path):
    """``build`` gives the original's files from both layouts, and prints root and both versions."""
    for cache in ("cache", "cache-shuffled"):
        result = build(tmp_path / cache, cache=cache)
        assert result.exit_code == 0
        assert files_of(tmp_path / cache) == files_of(GOLDEN / "expected" / "bpe")
        assert "merkle_root 1f03135b621ef180814dd0f8689570dd4a5babe567d3be202c95c02752b14da5" in result.stdout
        assert "Unicode 1" in result.stdout
        assert "tokenizers 0." in result.stdout
    assert "[r2d1] tokenize: " in result.stderr
    assert result.stderr.splitlines()[-1].endswith("is built")


def test_build_for_machines(tmp_path):
    """With ``--json`` progress is JSON lines on stderr and the result one object on stdout."""
    result = build(tmp_path / "out", "--json", "--workers", 1, "--memory", 600)
    found = json.loads(result.stdout)
    assert (found["status"], found["n_samples"], found["removed"]) == ("done", 264, 38)
    steps = [json.loads(line) for line in result.stderr.splitlines()]
    assert {step["event"] for step in steps} == {"progress"}
    assert steps[0]["stage"] == "references"


def test_build_that_cannot_be(tmp_path):
    """What is wrong with the command or its inputs is one last line that names it, and exit 2."""
    result = run("build", "--mix", "nope", "--out", tmp_path / "out", "--cache", tmp_path)
    assert result.exit_code == 2
    assert "the registry has no mix 'nope'; it has od-a-proxy-v1, od-a-v1" in result.stderr.splitlines()[-1]
    result = build(tmp_path / "out", "--limit-docs", 1)
    assert result.exit_code == 1
    assert "fewer than one unit" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_verify_says_what_it_read(golden_set):
    """``verify`` ends with 0 on a right set and with 1 on a damaged one, with every error on stdout."""
    result = run("verify", golden_set, "--workers", 1)
    assert result.exit_code == 0
    assert "full verification" in result.stdout
    result = run("verify", golden_set, "--sample", 3, "--json")
    assert json.loads(result.stdout)["mode"] == "sample"
    (golden_set / "shard-00004.u16").unlink()
    result = run("verify", golden_set, "-q")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "shard-00004.u16: is missing"
    assert "has 1 errors" in result.stderr
    assert run("verify", golden_set / "nowhere").exit_code == 2


def test_specs_are_made_signed_and_verified(tmp_path):
    """``spec keygen``, ``sign`` and ``verify`` work together; a stranger's key and another manifest fail."""
    directory = GOLDEN / "expected" / "bpe"
    public = run("spec", "keygen", "--key", tmp_path / "key").stdout.strip()
    assert len(public) == 64
    (tmp_path / "more.json").write_text('{"issuer": "us"}')
    signing = ("spec", "sign", directory, "--key", tmp_path / "key", "--to", tmp_path / "s.json")
    result = run(*signing, "--add", tmp_path / "more.json")
    assert (result.exit_code, result.stdout) == (0, f"signed by {public}\n")
    assert verify_spec((tmp_path / "s.json").read_bytes(), trusted=[public]).added == {"issuer": "us"}
    checking = ("spec", "verify", tmp_path / "s.json", "--trust", public)
    result = run(*checking, "--manifest", directory / "manifest.json")
    assert result.exit_code == 0
    assert "is the manifest that the spec describes" in result.stdout
    result = run(*checking, "--manifest", GOLDEN / "expected" / "bytes" / "manifest.json")
    assert result.exit_code == 1
    assert "is not the one the spec describes: merkle_root is" in result.stderr
    result = run("spec", "verify", tmp_path / "s.json", "--trust", "0" * 64, "--json")
    assert result.exit_code == 1
    assert "not a trusted one" in json.loads(result.stdout)["error"]
    assert run("spec", "keygen", "--key", tmp_path / "key").exit_code == 2
    private = (tmp_path / "key").read_text()
    assert private not in result.output


def test_an_interrupt_ends_with_its_own_code(tmp_path):
    """Ctrl-C ends the command with 130 and says that it goes on where it stopped."""
    os.mkfifo(tmp_path / "pipe")
    program = "from r2d1.cli.datasets import datasets; datasets()"
    command = [sys.executable, "-c", program, "spec", "verify", tmp_path / "pipe", "--trust", "0" * 64]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=env, text=True) as child:
        with (tmp_path / "pipe").open("wb"):  # opens once the child waits for what it is to read
            child.send_signal(signal.SIGINT)
            said = child.stderr.read()
    assert child.returncode == 130
    assert "goes on where it stopped" in said


def test_a_bar_is_drawn_on_a_terminal(capsys):
    """On a terminal each stage has a bar that ends wiped."""
    from r2d1.datasets import Progress

    with commands._Bar() as bar:
        for done in (0, 50, 100):
            bar(Progress("scan", done, 100, "bytes"))
        bar(Progress("order", 0, 1, "sorts"))
    text = capsys.readouterr().err
    assert "scan:   0%" in text
    assert "order:   0%" in text


@pytest.mark.parametrize("command", ["build", "verify", "spec keygen", "spec sign", "spec verify"])
def test_every_command_explains_itself(command):
    """Help ends with 0 and shows an example and the options that all commands share."""
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    for word in ("Examples:", f"r2d1 datasets {command}", "--json", "--quiet"):
        assert word in result.stdout
