"""Tokenizing alone: ``bytes|wordpiece CACHE`` reads the documents and makes ids of them, no more."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

SHIFT = 3


def main() -> None:
    mix, cache = sys.argv[1], Path(sys.argv[2])
    encode = as_bytes if mix == "bytes" else as_words(cache)
    documents = 0
    for path in sorted((cache / "docs").glob("*.parquet")):
        with pq.ParquetFile(path) as opened:
            for number in range(opened.num_row_groups):
                texts = opened.read_row_group(number, columns=["text"]).column(0).to_pylist()
                encode(texts)
                documents += len(texts)
    print(documents)


def as_bytes(texts: list[str]) -> None:
    for text in texts:
        ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)
        ids += SHIFT


def as_words(cache: Path) -> Callable[[list[str]], object]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(cache / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False)


main()
