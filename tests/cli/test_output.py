"""What commands say: JSON for machines, one last line, no traceback and never a secret."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import termios
import threading

import pytest

from r2d1 import Settings
from r2d1.cli.common import Common, speaking
from r2d1.cli.ending import Exit, of_error
from r2d1.cli.running import Session, Stop
from r2d1.errors import ConfigError, FlushError, MissingObjects, NameRefused, RemoteError, UriError
from r2d1.observers import Bar, JsonLines, PlainLines
from r2d1.testing import Answer, Fault, When
from r2d1.testing.d1 import refused
from tests.checkpoints import write_checkpoint
from tests.cli.shell import R2D1, answer, child_env, finished, last_line, run


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})


@pytest.fixture
def env(s3, d1):
    return {**s3.env(), **d1.settings_env()}


def test_json_events_are_lines_of_json(env, folder):
    """Every line of stderr is an event; stdout is the result alone."""
    result = run("ship", folder, "--job-id", "job", "--json", env=env)
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert [event["event"] for event in events] == ["ShipStarted", "BytesMoved", "Committed", "RowWritten"]
    assert len(result.stdout.splitlines()) == 1
    assert answer(result)["name"] == "chk_1"


def test_a_failure_is_json_too(env, s3, folder):
    """The object says failed, what and one hint."""
    s3.rotate("f" * 32, "0" * 64)
    result = run("ship", folder, "--job-id", "job", "--json", env=env)
    said = answer(result)
    assert (result.exit_code, said["status"]) == (1, "failed")
    assert "GetObject" in str(said["error"]) and "access key" in str(said["hint"])
    assert "Traceback" not in result.stderr


def test_a_failure_ends_with_one_line_and_a_hint(env, s3, folder):
    """Operation, key, status and code, then what to do; no traceback unless it is asked for."""
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Answer(403, "AccessDenied"), times=None))
    result = run("ship", folder, "--job-id", "job", env=env)
    line = last_line(result)
    assert line.startswith("r2d1 ship: failed: PutObject jobs/job/chk_1/a.bin: 403 AccessDenied")
    assert "Object Read & Write" in line
    assert "Traceback" not in result.stderr
    assert "Traceback" in run("ship", folder, "--job-id", "job", "-v", env=env).stderr


def test_settings_that_are_missing_are_listed_before_the_last_line(folder, monkeypatch, tmp_path):
    """A long error is told in full, its last line says it in one."""
    monkeypatch.chdir(tmp_path)
    lines = run("ship", folder, "--job-id", "job").stderr.splitlines()
    assert any("R2D1_R2_BUCKET (or R2_BUCKET)" in line for line in lines[:-1])
    assert lines[-1].startswith("r2d1 ship: failed: settings for R2 are missing (listed above). ")


def test_a_hint_is_not_given_twice(folder, monkeypatch, tmp_path):
    """Where the error ends with what to do, the last line says that, and nothing before it does."""
    monkeypatch.chdir(tmp_path)
    *before, last = run("ship", folder, "--job-id", "job").stderr.splitlines()
    assert last.endswith("Set them in the environment or in an env file; `r2d1 secrets` shows what was found where")
    assert not any("r2d1 secrets" in line for line in before)


def test_a_failure_is_not_told_twice(env, folder, s3):
    """One scan, one refusal: the line of the event has it, and the last line names the checkpoint."""
    s3.faults.add(Fault(When(method="PUT"), Answer(403, "AccessDenied", "scripted"), times=None))
    result = run("watch", folder.parent, "--job-id", "job", "--once", env=env)
    assert result.exit_code == 1
    assert result.stderr.count("403 AccessDenied") == 1
    assert last_line(result).startswith("r2d1 watch: failed: some checkpoints are not in the bucket: job/chk_1")


async def test_a_session_tells_once_what_is_to_be_told_once():
    """However many parts of a command tell it."""
    told = []
    session = Session(Settings(), told.append, Stop(gently=False, end_now=lambda number: sys.exit(number)))
    for _ in range(2):
        session.tell.notice("warning", "odd", once="odd")
    assert [event.text for event in told] == ["odd"]


COMMANDS = [
    ["ls"],
    ["ls", "r2://jobs/job"],
    ["pull", "r2://jobs/job/latest", "--dest", "pulled"],
    ["ship", "made/chk_1", "--job-id", "job"],
    ["ship", "made/chk_1", "--job-id", "job", "--dry-run"],
    ["watch", "made", "--job-id", "job", "--once"],
    ["status", "--job-id", "job", "made"],
    ["init"],
    ["secrets"],
]


@pytest.mark.parametrize("more", [["-v"], ["-v", "--json"]])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_secret_is_ever_printed(command, more, env, s3, d1, folder, tmp_path, monkeypatch):
    """Every call refused, tracebacks asked for: neither keys nor token nor a signature are in what is printed."""
    monkeypatch.chdir(tmp_path)
    s3.faults.add(Fault(When(), Answer(403, "SignatureDoesNotMatch", "scripted"), times=None))
    d1.always(refused(401, 10000, "Authentication error"))
    result = run(*command, *more, env=env)
    assert result.exit_code == (0 if command == ["secrets"] else 1)
    said = result.stdout + result.stderr
    for secret in (s3.secret_key, s3.access_key, d1.api_token, "Bearer", "X-Amz-Signature", "AWS4-HMAC"):
        assert secret not in said


def test_a_bug_is_told_as_one(capsys):
    """An exception that r2d1 does not know comes with its traceback and asks for a report."""
    result = of_error(ZeroDivisionError("division by zero"))
    assert result.code is Exit.FAILED
    assert result.why == "unexpected ZeroDivisionError: division by zero"
    assert "report it" in result.hint
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (UriError("x"), 2),
        (NameRefused("x"), 2),
        (FlushError("x"), 1),
        (MissingObjects("x"), 1),
        (RemoteError("GetObject", "key", reason="broken"), 1),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_each_kind_of_error_has_a_code_and_a_hint(error, code, capsys):
    """Configuration and usage are 2, the rest 1; known errors print no traceback and always carry a hint."""
    result = of_error(error)
    assert result.code == code
    assert result.hint
    assert capsys.readouterr().err == ""


def test_an_error_carries_its_own_hint_once():
    """The hint of a refusal is the error's own, and is not said twice."""
    result = of_error(RemoteError("GetObject", "k", status=403, code="AccessDenied", hint="Ask for a token"))
    assert (result.why, result.hint) == ("GetObject k: 403 AccessDenied", "Ask for a token")


@pytest.mark.parametrize(
    ("common", "is_terminal", "kind"),
    [
        (Common(), False, PlainLines),
        (Common(), True, Bar),
        (Common(quiet=True), True, PlainLines),
        (Common(as_json=True), True, JsonLines),
    ],
)
def test_who_listens_decides_how_events_are_told(common, is_terminal, kind, monkeypatch):
    """A bar on a terminal, plain lines elsewhere, JSON where it was asked for."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with speaking(common) as observer:
        assert type(observer) is kind


@pytest.mark.parametrize("verbose", [False, True])
def test_logged_tracebacks_are_for_those_who_asked(verbose, capsys):
    """A log record is one line; its traceback is shown with ``-v``."""
    log = logging.getLogger("r2d1")
    with speaking(Common(verbose=verbose)):
        try:
            raise ZeroDivisionError("zero")
        except ZeroDivisionError:
            log.exception("it broke")
    err = capsys.readouterr().err
    assert err.startswith("[r2d1] ERROR: it broke\n")
    assert ("Traceback" in err) is verbose
    assert log.handlers == []


def test_a_terminal_shows_a_bar(env, folder, tmp_path):
    """With a terminal for stderr the bytes that move are a bar; the last line is still the last line."""
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [*R2D1, "pull", "r2://jobs/job/latest", "--dest", "pulled"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs, env=child_env(env, tmp_path), cwd=tmp_path
    )
    os.close(theirs)
    shown = _read_terminal(ours)
    assert process.wait(60) == 0
    assert re.search(r"chk_1: +[0-9]+%\|", shown), shown
    assert shown.splitlines()[-1].startswith("r2d1 pull: done: chk_1")


def _read_terminal(fd: int) -> str:
    blocks = []
    try:
        while block := os.read(fd, 4096):
            blocks.append(block)
    except OSError:  # the way Linux tells that the other side is closed
        pass
    finally:
        os.close(fd)
    return b"".join(blocks).decode()


def test_names_that_no_encoding_holds_are_shown_escaped(env, tmp_path):
    """A directory whose name is not UTF-8 is told, and does not end the program."""
    watched = tmp_path / "w\udcff"
    write_checkpoint(watched, "chk_1", 1, {"a.bin": b"abc"})
    ended = finished("watch", str(watched), "--job-id", "job", "--once", env=env, home=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    pulled = finished("pull", "r2://jobs/job/latest", "--dest", str(tmp_path / "p\udcff"), env=env, home=tmp_path)
    assert pulled.exit_code == 0, pulled.stderr
    assert pulled.stdout == f"{tmp_path}/p\\udcff/chk_1\n"


def test_a_reader_that_goes_away_is_no_error(env, folder, tmp_path):
    """``r2d1 secrets | head -0`` ends quietly."""
    process = subprocess.Popen(
        [*R2D1, "secrets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_env(env, tmp_path), text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    text = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "Traceback" not in text and "Exception" not in text


@pytest.mark.parametrize("arguments", [["ship", "made/chk_1", "--job-id", "job"], ["ship"], ["--help"]], ids=" ".join)
def test_nothing_of_a_command_is_left_in_the_process(arguments, env, folder, tmp_path, monkeypatch):
    """Signal handlers, log handlers and threads are as they were before."""
    monkeypatch.chdir(tmp_path)
    mine = signal.SIG_IGN
    before = signal.signal(signal.SIGTERM, mine), signal.getsignal(signal.SIGINT)
    threads = set(threading.enumerate())
    try:
        run(*arguments, env=env)
        after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before[0])
    assert after == (mine, before[1])
    assert logging.getLogger("r2d1").handlers == []
    left = [each for each in set(threading.enumerate()) - threads if not each.daemon]
    for each in left:
        each.join(10)  # anyio tells its workers to go when the loop ends, and does not wait for them
    assert [each.name for each in left if each.is_alive()] == []
