"""What the dataset scenarios work on: ``set DIR BYTES`` or ``source DIR BYTES TOKENIZER``; prints its size as JSON."""

import ast
import gzip
import hashlib
import json
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r2d1.datasets import ShardSetWriter, TokenizerPin, plan_layout

SEQ_LEN, UNIT = 1024, 512  # as the sets of the shipped registry have them
PACKAGES = Path(sysconfig.get_path("purelib"))
FILES = 4
#: Rows of a row group, about 2 MiB of text: as much as a build reads at once.
ROWS = 700
#: Texts are joined to documents of at least so many bytes.
DOCUMENT = 3000
#: One document in so many stands in the reference source too, so that decontamination has something to find.
REFERENCES = 500


def write_set(folder: Path, size: int) -> dict[str, int]:
    """A shard set of random ids, whole units of about ``size`` bytes."""
    layout = plan_layout(SEQ_LEN, unit=UNIT)
    writer, rng = ShardSetWriter(folder, layout), np.random.default_rng(7)
    for _ in range(max(1, size // layout.unit_size)):
        writer.append(rng.integers(0, 1 << 16, (UNIT, SEQ_LEN + 1), dtype=np.uint16))
    made = writer.finish(TokenizerPin("random", "0" * 64))
    return {"bytes": made.n_samples * layout.row_size, "units": made.n_units, "unit_size": layout.unit_size}


def write_source(cache: Path, size: int, tokenizer: Path) -> dict[str, int]:
    """Documents of about ``size`` bytes from the installed packages, with two mixes: ``bytes`` and ``wordpiece``."""
    texts = some(size)
    for number in range(FILES):
        write(cache / "docs" / f"{number}.parquet", texts[number::FILES])
    write(cache / "test" / "0.parquet", texts[::REFERENCES])
    shutil.copy(tokenizer, cache / "tokenizer.json")
    (cache / "registry.json").write_text(json.dumps(registry(tokenizer)), encoding="utf-8")
    return {"bytes": sum(len(text.encode()) for text in texts), "documents": len(texts)}


def some(size: int) -> list[str]:
    """Distinct texts, joined to documents, up to ``size`` bytes in all."""
    found: list[str] = []
    seen: set[str] = set()
    held: list[str] = []
    total = held_size = 0
    for text in texts_of_packages():
        if text in seen:
            continue
        seen.add(text)
        held.append(text)
        held_size += len(text.encode()) + 2
        if held_size >= DOCUMENT:
            found.append("\n\n".join(held))
            total += held_size
            held, held_size = [], 0
        if total >= size:
            return found
    raise SystemExit(f"the installed packages have {total} bytes of documentation, not {size}")


def texts_of_packages() -> Iterator[str]:
    """Descriptions of botocore's services, then docstrings."""
    for path in sorted(PACKAGES.rglob("service-2.json.gz")):
        yield from descriptions(json.loads(gzip.decompress(path.read_bytes())))
    for path in sorted(PACKAGES.rglob("*.py")):
        yield from docstrings(path)


def descriptions(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("documentation"), str):
        yield value["documentation"]
    for each in inner:
        yield from descriptions(each)


def docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files for other versions of Python
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    yield from (text for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node)))


def write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path, row_group_size=ROWS)


def registry(tokenizer: Path) -> dict[str, Any]:
    source = {"repo": "example/source", "revision": "0" * 40, "config": None, "files": ["*.parquet"]}
    source |= {"text_field": "text", "licence": "Apache-2.0"}
    mix = {"components": [["docs", 1.0]], "decontam_against": ["test"], "holdout": None, "record": None}
    mix |= {"seq_len": SEQ_LEN}
    pin = {"repo": "example/tokenizer", "revision": "0" * 40, "filename": "tokenizer.json", "license": "Apache-2.0"}
    pin |= {"sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(), "end_token": "[SEP]"}
    return {
        "version": 1,
        "sources": {"docs": {**source, "role": "pretrain"}, "test": {**source, "role": "eval"}},
        "mixes": {"bytes": {**mix, "tokenizer": "bytes"}, "wordpiece": {**mix, "tokenizer": "mini"}},
        "tokenizers": {"mini": pin},
        "build_records": {},
    }


def main() -> None:
    what, folder, size, *rest = sys.argv[1:]
    made = write_set(Path(folder), int(size)) if what == "set" else write_source(Path(folder), int(size), Path(*rest))
    print(json.dumps(made))


main()
