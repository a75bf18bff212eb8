"""``docs/hosting.md`` and ``.env.example`` tell the truth: their commands, the curl line and the policy are run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from r2d1.settings import Settings
from r2d1.sources import VARIABLES
from tests.cli.shell import answer, run
from tests.datasets.making import GOLDEN
from tests.datasets.published import make_set

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "hosting.md").read_text()
ORIGIN = "https://app.example"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def lines(program):
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith(f"{program} ")]


@pytest.fixture
def home(tmp_path, monkeypatch, s3):
    """A directory with everything the page is about, its ``.env`` made from the example."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "cache", "cache")
    shutil.copy(GOLDEN / "registry.json", "registry.json")
    Path("labels/a").mkdir(parents=True)
    Path("labels/a/0.npy").write_bytes(b"label")
    shutil.copy(ROOT / ".env.example", ".env")
    with open(".env", "a") as file:
        file.writelines(f"{name}={value}\n" for name, value in s3.env().items())
    return tmp_path


def test_the_commands_run_as_printed(home, s3):
    """Each ends with 0, in the order of the page; a small registry stands in for the shipped one's terabytes."""
    make_source, read_units = blocks("python")
    exec(make_source, {})  # noqa: S102 - the page's own block
    Path("small.json").write_text(blocks("json")[1])
    for line in lines("r2d1"):
        small = "--mix golden-a-bytes --registry registry.json --unit 4 --workers 1"
        full = line.replace("--mix od-a-v1", small).replace("file:///tmp", home.as_uri())
        command, _, output = full.partition(" > ")
        result = run(*shlex.split(command)[1:])
        assert result.exit_code == 0, f"{line}\n{result.stderr}"
        if output:
            Path(output).write_text(result.stdout)
    assert (home / "example-data" / "sets" / "letters-v1").is_dir()
    keys = set(s3.keys())
    assert {"sets/od-a-v1/manifest.json", "sets/od-a-v1/build_record.json"} <= keys
    assert {"labels/teacher-od-a-v1/a/0.npy", "labels/teacher-od-a-v1/labels-index.json"} <= keys
    assert not [key for key in keys if key.startswith("_doctor/")]
    scope = {}
    exec(read_units.replace("https://data.example/sets/od-a-v1", f"{s3.public_url}/sets/od-a-v1"), scope)  # noqa: S102
    assert scope["rows"].shape[0] == 4
    assert len(list(Path("units").iterdir())) == 16


def test_the_curl_line_gets_a_range(home, s3):
    """Run by a shell as printed, against the public endpoint: 206."""
    made = make_set(home / "set")
    assert run("datasets", "publish", made.directory, "--env-file", ".env").exit_code == 0
    (line,) = lines("curl")
    done = subprocess.run(
        ["sh", "-c", line],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "R2D1_R2_PUBLIC_BASE": s3.public_url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[1] == "206"


def test_the_policy_lets_pages_read(home, s3):
    """The bucket with exactly this policy passes the doctor's CORS check; without it the doctor prints one."""
    policy = blocks("json")[0]
    s3.cors = json.loads(policy)
    assert run("doctor", "--env-file", ".env", "--cors-origin", ORIGIN).exit_code == 0
    s3.cors = []
    result = run("doctor", "--env-file", ".env", "--cors-origin", ORIGIN, "--json")
    (finding,) = [each for each in answer(result)["findings"] if each["check"] == "cors"]
    assert json.loads(finding["paste"]) == [{**json.loads(policy)[0], "AllowedOrigins": [ORIGIN]}]


def test_the_example_file_names_settings_that_exist():
    """Every name in it is one that r2d1 reads, and filled in it makes complete settings."""
    text = (ROOT / ".env.example").read_text()
    known = {name for variable in VARIABLES for name in variable.names}
    assert set(re.findall(r"^#?([A-Z0-9_]+)=", text, re.MULTILINE)) <= known
    assert set(re.findall(r"\b(?:R2|AWS|CLOUDFLARE|D1)_[A-Z_]+", text)) <= known
    canonical = {variable.names[0] for variable in VARIABLES}
    assert canonical <= set(re.findall(r"^#?([A-Z0-9_]+)=", text, re.MULTILINE))
    filled = dict.fromkeys(re.findall(r"^([A-Z0-9_]+)=", text, re.MULTILINE), "x" * 20)
    filled["R2D1_R2_PUBLIC_BASE"] = "https://data.example"
    assert Settings.from_env(environ=filled).missing_r2() == []


def test_the_table_of_names_is_right():
    """Each short name of the page means the setting beside it."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", TEXT, re.MULTILINE)
    assert len(rows) == 6
    for canonical, short in rows:
        (variable,) = [each for each in VARIABLES if canonical in each.names]
        assert short in variable.names


def test_git_ignores_the_file_with_the_secrets():
    """``.env`` is on the list of what git leaves out, and the example is not."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert ".env" in ignored
    assert ".env.example" not in ignored
    assert ".env*" not in ignored
