"""The commands for datasets: their help is true, their exit codes are the program's, machines can read them."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from r2d1.cli.datasets import COMMANDS, datasets
from r2d1.testing import Answer, Fault, When
from tests.children import child_env, run_script
from tests.cli.shell import R2D1, answer, last_line, run
from tests.datasets.making import GOLDEN, registry, source, write_parquet
from tests.datasets.published import UNIT_SIZE, make_set

PATHS = [(name,) for name in COMMANDS] + [("spec", name) for name in ("keygen", "sign", "verify")]


def command_at(path):
    command = datasets
    for name in path:
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.fixture
def home(tmp_path, monkeypatch, s3):
    """A directory in which every example has what it is about, and a bucket that holds the set at its top."""
    monkeypatch.chdir(tmp_path)
    made = make_set(Path("data/od"), with_record=True)
    assert run("datasets", "publish", made.directory, env=s3.env()).exit_code == 0
    Path("labels").mkdir()
    Path("labels/0.npy").write_bytes(b"label")
    Path(".env").write_text("".join(f"{name}={value}\n" for name, value in s3.env().items()))
    Path("prod.env").write_text(Path(".env").read_text())
    write_parquet(Path("cache/prose/0.parquet"), {"text": [f"document {number} of prose" * 9 for number in range(40)]})
    Path("registry.json").write_text(
        json.dumps(registry(sources={"prose": source()}, mixes={"prose": {**MIX, "components": [["prose", 1.0]]}}))
    )
    for name in ("sign", "verify", "prefetch"):
        key = run("datasets", "spec", "keygen", "--out", f"{name}.pem", "--json")
        Path(f"{name}.key").write_text(str(answer(key)["public_key"]))
    shutil.copy("sign.pem", "issuer.pem")
    assert run("datasets", "spec", "sign", "data/od", "--key", "issuer.pem", "--out", "spec.json").exit_code == 0
    return tmp_path


MIX = {"decontam_against": [], "holdout": None, "seq_len": 8, "record": None, "tokenizer": "bytes"}


def examples():
    found = []
    for path in [(), *PATHS]:
        epilog = command_at(path).epilog or ""
        found += [line.strip() for line in epilog.splitlines() if line.strip().startswith("r2d1 ")]
    return found


@pytest.mark.parametrize("line", examples())
def test_the_line_of_the_help_runs(line, home, s3):
    """It ends with 0, with real addresses and keys in the place of those that stand for them."""
    mirror = (home / "mirror").as_uri()
    said = line.replace("https://data.example", s3.public_url).replace("KEY", Path("sign.key").read_text())
    said = said.replace("file:///srv/mirror", mirror).replace("--mix prose", "--mix prose --workers 1")
    said = said.replace("data/prose", "out").replace("--registry registry.json", "--registry registry.json --unit 2")
    said = said.replace("--unit 2 --limit-docs 9 --unit 4", "--limit-docs 9 --unit 4")
    if "keygen" in said:
        os.unlink("issuer.pem")
    result = run(*shlex.split(said)[1:])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_explains_itself(path):
    """Help ends with 0, shows examples and the common options; the table says what the command says of itself."""
    command = command_at(path)
    result = run("datasets", *path, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    if path != ("spec",):
        assert all(word in result.stdout for word in ("--json", "--quiet", "--verbose", "--env-file"))
    if len(path) == 1:
        assert command.name == path[0]
        assert inspect.cleandoc(command.help or "").splitlines()[0] == COMMANDS[path[0]][1]


def test_the_list_imports_nothing_heavy():
    """``r2d1 datasets --help`` costs none of the libraries of the extra."""
    script = """
import sys
sys.argv[1:] = ["datasets", "--help"]
from r2d1.cli import main
try: main()
finally: print("MODULES", *sys.modules)
"""
    modules = run_script(script, env=child_env()).splitlines()[-1].split()
    assert {"numpy", "pyarrow", "duckdb", "cryptography", "httpx", "aioboto3", "tqdm"} & set(modules) == set()


@pytest.mark.parametrize(
    ("library", "arguments"),
    [
        ("cryptography", ["spec", "keygen", "--out", "k.pem"]),
        ("pyarrow", ["build", "--mix", "m", "--out", "o", "--cache", "."]),
    ],
)
def test_a_missing_library_is_told(library, arguments, tmp_path, monkeypatch):
    """Without the extra a command that needs it ends with 2 and the line to install it; others work."""
    monkeypatch.chdir(tmp_path)
    script = f"""
import sys
sys.modules[{library!r}] = None
sys.argv[1:] = {["datasets", *arguments]!r}
from r2d1.cli import main
try: main()
except SystemExit as end: print("CODE", end.code)
"""
    assert run_script(script, env=child_env()).splitlines()[-1] == "CODE 2"


# Build and verify


def test_build_makes_the_documented_bytes(tmp_path):
    """The command builds what the format's own builder did, byte for byte."""
    arguments = ["--mix", "golden-a-bytes", "--cache", GOLDEN / "cache", "--registry", GOLDEN / "registry.json"]
    result = run("datasets", "build", *arguments, "--out", tmp_path / "set", "--unit", "4", "--workers", "1", "--json")
    said = answer(result)
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_bytes())
    assert said["merkle_root"] == manifest["merkle_root"]
    assert (said["n_shards"], said["n_samples"]) == (manifest["n_shards"], manifest["n_samples"])
    assert run("datasets", "verify", tmp_path / "set").exit_code == 0


def test_build_says_what_it_replaces_and_leaves(home):
    """A set in the place of the new one, a field nobody reads, and the workspace of a build that failed are told."""
    registry = json.loads(Path("registry.json").read_text())
    registry["sources"]["prose"]["exclud"] = ["*"]
    Path("registry.json").write_text(json.dumps(registry))
    command = "datasets build --mix prose --registry registry.json --cache cache --out o --workers 1 --unit"
    first = run(*command.split(), "2")
    assert first.exit_code == 0, first.stderr
    assert "sources.prose.exclud of the registry is no field" in first.stderr
    assert "o holds a set already" not in first.stderr
    assert "prose: 40 documents taken, 0 removed by decontamination, 0 denied by the filter" in first.stdout
    failed = run(*command.split(), "4096")
    assert failed.exit_code == 1
    assert "o holds a set already, which is replaced" in failed.stderr
    assert "o.building keeps what was finished" in failed.stderr
    assert Path("o/manifest.json").exists()
    assert Path("o.building").exists()


def test_build_refuses_what_it_does_not_know(tmp_path):
    """An unknown mix is a usage error that names it."""
    result = run("datasets", "build", "--mix", "none-such", "--cache", tmp_path, "--out", tmp_path / "set")
    assert result.exit_code == 2
    assert "none-such" in last_line(result)


def test_verify_tells_every_error_and_ends_with_1(home):
    """Damage is named with its file, on stdout for people and in the object for machines."""
    path = Path("data/od/shard-00002.u16")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    result = run("datasets", "verify", "data/od")
    assert result.exit_code == 1
    assert "shard-00002.u16: sha256 is" in result.stdout
    said = answer(run("datasets", "verify", "data/od", "--json"))
    assert {each["file"] for each in said["problems"]} == {"shard-00002.u16"}
    assert run("datasets", "verify", "nowhere").exit_code == 2


# How errors end


def damage_spec(home):
    Path("spec.json").write_text(Path("spec.json").read_text().replace('"m"', '"n"'))


def damage_shard(home):
    path = Path("data/od/shard-00002.u16")
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def malform_registry(home):
    Path("registry.json").write_text(json.dumps({**json.loads(Path("registry.json").read_text()), "version": "1"}))


def null_text(home):
    write_parquet(Path("cache/prose/0.parquet"), {"text": ["some", None]})


FAILURES = [
    (damage_spec, "spec verify spec.json --trusted KEY", 1, "is not what the key "),
    (damage_shard, "publish data/od --prefix p", 1, "shard-00002.u16: its sha256 is "),
    (lambda home: os.unlink("data/od/shard-00002.u16"), "publish data/od --prefix p", 1, "shard-00002.u16 is missing"),
    (malform_registry, "build --mix prose --registry registry.json --cache cache --out o", 2, "version is '1'"),
    (null_text, "build --mix prose --registry registry.json --cache cache --out o", 1, "row 1"),
    (
        lambda home: shutil.rmtree("cache/prose"),
        "build --mix prose --registry registry.json --cache cache --out o",
        2,
        "no parquet file",
    ),
    (None, "build --mix prose --registry registry.json --cache cache --out o --unit 4096", 1, "fewer than one unit"),
    (None, "prefetch --spec spec.json --trusted KEY --cache u --base URL/elsewhere", 1, "404"),
    (None, "prefetch --spec spec.json --trusted KEY --cache u --base ftp://x", 2, "a base cannot be used"),
    (lambda home: os.mkfifo("labels/pipe"), "publish-labels labels --prefix l", 1, "it is not a regular file"),
    (None, "verify nowhere", 2, "nowhere is not a directory"),
]


@pytest.mark.parametrize(("change", "line", "code", "said"), FAILURES, ids=[line for _, line, _, _ in FAILURES])
def test_a_failure_ends_with_words_about_datasets(change, line, code, said, home, s3):
    """No hint speaks of checkpoints or of settings that have nothing to do with it; nothing is punctuated twice."""
    if change:
        change(home)
    full = line.replace("KEY", Path("sign.key").read_text()).replace("URL", s3.public_url)
    result = run("datasets", *shlex.split(full), env=s3.env())
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    for other in ("checkpoint", "newer r2d1", "r2d1 secrets", "journal", "?.", "..", ";."):
        assert other not in result.stderr.replace("r2d1 datasets", ""), result.stderr


def test_a_wrong_secret_key(home, s3):
    """The first request is a HEAD, whose refusal has no body: the hint names what it can be, and who tells which."""
    wrong = {**s3.env(), "R2D1_R2_SECRET_KEY": "x" * 40}
    result = run("datasets", "publish", "data/od", "--prefix", "p", env=wrong)
    assert result.exit_code == 1
    assert "403" in last_line(result)
    assert "secret key may be wrong" in last_line(result)
    assert "`r2d1 doctor`" in last_line(result)


# Publish


def test_publish_says_what_it_did(home, s3):
    """Counts for people on the last line, for machines in the object; a second run sends nothing."""
    result = run("datasets", "publish", "data/od", "--prefix", "p", env=s3.env())
    assert last_line(result).startswith("r2d1 datasets publish: done: 7 objects sent (")
    assert "8 units verified" in last_line(result)
    said = answer(run("datasets", "publish", "data/od", "--prefix", "p", "--json", env=s3.env()))
    assert (said["sent"], said["present"], len(said["verified_units"])) == (0, 7, 8)


def test_another_set_is_replaced_unless_that_is_ruled_out(home, s3):
    """With --no-replace a mistyped prefix harms nobody: 1, and why; without, it is replaced and told."""
    other = make_set(Path("other"), shards=3).directory
    result = run("datasets", "publish", other, "--no-replace", env=s3.env())
    assert result.exit_code == 1
    assert "documents of another set are published there" in last_line(result)
    result = run("datasets", "publish", other, env=s3.env())
    assert result.exit_code == 0
    assert "manifest.json held another document, which was replaced" in result.stderr
    assert s3.get("manifest.json") == (other / "manifest.json").read_bytes()


def test_a_unit_that_does_not_come_back_right_is_a_failure(home, s3):
    """Reading back fails: exit 1, the unit and its URL named."""
    s3.faults.add(Fault(When(operation="PublicGetObject"), Answer(404), times=None))
    result = run("datasets", "publish", "data/od", "--verify-units", "1", env=s3.env())
    assert result.exit_code == 1
    assert s3.public_url in result.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "s3"], "neither r2 nor file:///DIR"),
        (["--to", "file:///DIR?x"], "%3F"),
        (["--verify-units", "-1"], "--verify-units"),
        (["--prefix", "a//b"], "prefix"),
        (["--prefix", "jobs/run"], "checkpoints lie below jobs/"),
    ],
)
def test_usage_errors_of_publish(more, said, home, s3):
    """What makes no sense ends with 2 before anything is sent."""
    s3.log.clear()
    result = run("datasets", "publish", "data/od", *more, env=s3.env())
    assert result.exit_code == 2
    assert said in result.stderr
    assert s3.requests == []


def test_settings_that_are_missing(home):
    """Without settings every missing one is named, with 2."""
    os.unlink(".env")
    for more in ([], ["--verify-units", "0"]):
        result = run("datasets", "publish", "data/od", *more)
        assert result.exit_code == 2
        assert "R2_BUCKET" in result.stderr
        assert "R2_SECRET_ACCESS_KEY" in result.stderr
        assert ("R2_PUBLIC_BASE" in result.stderr) is (not more)


def test_no_public_base(home, s3):
    """Units cannot be read back without one: 2, naming the variable and the way out."""
    os.unlink(".env")
    env = {name: value for name, value in s3.env().items() if "PUBLIC" not in name}
    result = run("datasets", "publish", "data/od", env=env)
    assert result.exit_code == 2
    assert "R2_PUBLIC_BASE" in result.stderr
    assert "--verify-units 0" in result.stderr


def test_labels_that_went_are_printed(home, s3):
    """Paths that the index no longer names are the result; counts are on the last line."""
    command = ("datasets", "publish-labels", "labels", "--prefix", "l")
    assert run(*command, env=s3.env()).exit_code == 0
    os.rename("labels/0.npy", "labels/1.npy")
    result = run(*command, env=s3.env())
    assert result.stdout == "removed: 0.npy\n"
    assert "1 file sent" in last_line(result)
    assert answer(run(*command, "--json", env=s3.env()))["removed"] == []


# Prefetch and specs


def test_prefetch_prints_paths_in_order(home, s3):
    """One path a unit, in the order asked for; a spec signed by nobody trusted is a failure."""
    arguments = ["--spec", "spec.json", "--base", s3.public_url, "--cache", "units", "--units", "3,0-1"]
    key = Path("sign.key").read_text()
    result = run("datasets", "prefetch", *arguments, "--trusted", key)
    assert result.exit_code == 0, result.stderr
    hashes = json.loads(Path("data/od/manifest.json").read_text())["unit_sha256s"]
    assert result.stdout.splitlines() == [f"units/{hashes[unit]}" for unit in (3, 0, 1)]
    other = Path("verify.key").read_text()
    assert run("datasets", "prefetch", *arguments, "--trusted", other).exit_code == 1
    said = answer(run("datasets", "prefetch", *arguments, "--trusted", key, "--json"))
    assert (said["units"], said["paths"]) == (3, result.stdout.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--manifest", "data/od/manifest.json", "--spec", "spec.json"],
        ["--spec", "spec.json"],
        ["--manifest", "data/od/manifest.json", "--units", "1-"],
        ["--manifest", "data/od/manifest.json", "--units", "1,5-2"],
        ["--manifest", "data/od/manifest.json", "--base", "ftp://x"],
        ["--manifest", "data/od/manifest.json", "--cache-limit", "0.000000001"],
    ],
)
def test_usage_errors_of_prefetch(arguments, home):
    """They end with 2."""
    assert run("datasets", "prefetch", "--base", "http://127.0.0.1:1", "--cache", "c", *arguments).exit_code == 2


@pytest.mark.parametrize("units", ["99", "0,18-99"])
@pytest.mark.parametrize("what", [["--manifest", "data/od/manifest.json"], ["--spec", "spec.json", "--trusted", "KEY"]])
def test_a_unit_that_is_none(units, what, home, s3):
    """An id that the set does not have ends with an error that says how many it has, before any unit is fetched."""
    what = [each.replace("KEY", Path("sign.key").read_text()) for each in what]
    result = run("datasets", "prefetch", *what, "--base", s3.public_url, "--cache", "c", "--units", units)
    assert result.exit_code == 2
    assert "unit 99 of a set with 20 units" in last_line(result)
    assert not Path("c").exists()


def test_a_cache_too_small_for_all_is_told(home, s3):
    """Paths that are printed may be gone: said once, before the first."""
    gib = 11 * UNIT_SIZE / 2**30
    arguments = ["--manifest", "data/od/manifest.json", "--base", s3.public_url, "--cache", "c"]
    result = run("datasets", "prefetch", *arguments, "--cache-limit", gib)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("the cache has room for 11 units, and 20 were asked for") == 1
    few = run("datasets", "prefetch", *arguments, "--cache-limit", gib, "--units", "0-10")
    assert "room" not in few.stderr


def test_a_reader_that_has_gone_ends_it_quietly(home, s3):
    """`prefetch | head -1`: no traceback and no word, as with the other commands."""
    command = [*R2D1, "datasets", "prefetch", "--manifest", "data/od/manifest.json", "--base", s3.public_url]
    env = child_env({"PYTHONUNBUFFERED": "1"})  # else what is left in the buffer hides what is said at the end
    process = subprocess.Popen([*command, "--cache", "c"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    with process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_specs(home):
    """A signed spec verifies with its key, fails with another; added fields are signed; keys are never replaced."""
    key = Path("sign.key").read_text()
    signing = ("datasets", "spec", "sign", "data/od", "--key", "issuer.pem", "--out", "named.json")
    assert run(*signing, "--add", "name=od", "--add", "version=3").exit_code == 0
    said = answer(run("datasets", "spec", "verify", "named.json", "--trusted", key, "--json"))
    assert (said["spec"]["name"], said["spec"]["version"]) == ("od", 3)
    assert run("datasets", "spec", "verify", "named.json", "--trusted", "ab" * 32).exit_code == 1
    Path("named.json").write_text(Path("named.json").read_text().replace('"od"', '"do"'))
    assert run("datasets", "spec", "verify", "named.json", "--trusted", key).exit_code == 1
    assert run("datasets", "spec", "keygen", "--out", "issuer.pem").exit_code == 2
    assert run(*signing, "--add", "seq_len=3").exit_code == 2
    assert run(*signing, "--add", "nothing").exit_code == 2
