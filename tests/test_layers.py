"""Who may import whom: the table of rooms, held against every import in the package, lazy ones included."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "r2d1"

#: A module imports only from rows above its own, and from its own room. A room is a module, or a folder of them;
#: after it stand the third-party libraries that live there. "(root)" is ``r2d1/__init__.py``.
TABLE = """
errors
events
secret
tasks
digest            blake3 awscrt
keys
strictjson
sidecar
manifest
documents
uris
checkpoint
localstate
retry
network           certifi
sources           dotenv
setting_rules
settings
objects           aioboto3 aiobotocore aiohttp botocore h11 multidict yarl
placing
journal_file
journal
d1_wire
d1                httpx
sqlite_database
catalog
observers         tqdm
transfer
remote
heads
legacy
rows
finding
listing
bases
maintain
gc
courier           watchfiles
fetcher
datasets          cryptography duckdb numpy pyarrow rfc8785 tokenizers torch
doctor
sync
aio
(root)
demo              numpy
cli               click tqdm
__main__
testing           aiohttp awscrt
"""

#: anyio is the language the package is written in, not a library of one room.
EVERYWHERE = {"anyio"}

#: Libraries with more than one room, each for a reason. The doubles are a second implementation on purpose: they
#: share no code with what they stand for.
SHARED = {
    "aiohttp": {"objects", "testing"},
    "awscrt": {"digest", "testing"},
    "numpy": {"datasets", "demo"},  # the demo trains something with it where it is there
    "tqdm": {"observers", "cli"},  # a bar over events, and one over the units of a verify
}

#: What two of these need moves down into a room of its own.
NEVER_EACH_OTHER = ("courier", "fetcher", "datasets", "doctor")

ROWS = {line.split()[0]: set(line.split()[1:]) for line in TABLE.strip().splitlines()}
ORDER = {room: number for number, room in enumerate(ROWS)}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its dotted name without ``r2d1.``; the package itself is ``""``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


NAMES = {name for name, _ in modules()}


def room_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0] or "(root)"


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported anywhere in a module, in functions and conditions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides the room it leads to"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def own_room(dotted: str) -> str | None:
    """The room of ours that an import leads to; None for the version, which depends on nothing."""
    inner = dotted.removeprefix("r2d1").removeprefix(".")
    if inner == "__version__":
        return None
    return room_of(inner) if inner.split(".", maxsplit=1)[0] in {name.split(".")[0] for name in NAMES} else "(root)"


def violations(name: str, tree: ast.AST) -> Iterator[str]:
    """What a module imports against the table."""
    room = room_of(name)
    for line, dotted in imports(tree):
        top = dotted.split(".", maxsplit=1)[0]
        if top == "r2d1":
            target = own_room(dotted)
            if target not in (None, room) and ORDER[target] > ORDER[room]:
                yield f"{name or 'r2d1'}:{line} imports {dotted}, whose row is below its own"
            if room in NEVER_EACH_OTHER and target in NEVER_EACH_OTHER and target != room:
                yield f"{name}:{line} imports {dotted}; what both need moves down"
        elif top not in sys.stdlib_module_names and top not in EVERYWHERE and top not in ROWS[room]:
            yield f"{name or 'r2d1'}:{line} imports {top}, which has no room there"


def test_every_module_has_a_row():
    """A new room is put into the table by whoever makes it, where it belongs."""
    assert {room_of(name) for name in NAMES} - set(ROWS) == set()


def test_imports_go_upwards_only():
    """No module imports from a row below its own, nor a library that lives elsewhere."""
    found = [why for name, path in modules() for why in violations(name, ast.parse(path.read_text(encoding="utf-8")))]
    assert found == []


def test_a_library_has_one_room():
    """Replacing a library is replacing one room, but for those that say why not."""
    rooms: dict[str, set[str]] = {}
    for room, libraries in ROWS.items():
        for library in libraries:
            rooms.setdefault(library, set()).add(room)
    assert {library: where for library, where in rooms.items() if len(where) > 1} == SHARED


@pytest.mark.parametrize(
    ("name", "source", "is_fine"),
    [
        ("keys", "from r2d1 import errors", True),
        ("keys", "from r2d1.errors import NameRefused", True),
        ("keys", "import r2d1.sidecar", False),
        ("keys", "def f():\n    from r2d1.manifest import Manifest", False),
        ("keys", "from r2d1 import sidecar", False),
        ("keys", "from r2d1 import Courier", False),
        ("keys", "from r2d1 import __version__", True),
        ("keys", "import httpx", False),
        ("keys", "import anyio", True),
        ("objects.r2", "from r2d1.objects.local import LocalStore", True),
        ("objects.r2", "import aioboto3", True),
        ("objects.r2", "from r2d1.transfer import upload", False),
        ("courier.deliver", "from r2d1 import fetcher", False),
        ("fetcher.prefix", "from r2d1.courier.folder import Folder", False),
        ("datasets.build", "from r2d1.fetcher import AsyncFetcher", False),
        ("cli.pulling", "from r2d1 import Fetcher", True),
        ("", "from r2d1.sync import Courier", True),
        ("", "from r2d1.cli import main", False),
        ("demo", "from r2d1.testing import S3Double", False),
    ],
)
def test_the_rules_bite(name, source, is_fine):
    """An import against the table is found, wherever it hides; one within it is not."""
    assert (list(violations(name, ast.parse(source))) == []) is is_fine


def test_relative_imports_are_not_used():
    """Every import names the room it leads to."""
    with pytest.raises(AssertionError, match="relative"):
        list(imports(ast.parse("from . import keys")))
