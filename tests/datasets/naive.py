"""Formats §9 once more, as plainly as Python can say it: what the real builder is compared with."""

from __future__ import annotations

import hashlib
import unicodedata


def words(text):
    """NFKC, lower case, everything but alphanumerics, ``_`` and white space to a space, split."""
    low = unicodedata.normalize("NFKC", text).lower()
    return "".join(c if c.isalnum() or c == "_" or c.isspace() else " " for c in low).split()


def grams(text):
    found = words(text)
    return {tuple(found[at : at + 13]) for at in range(len(found) - 12)}


def tree_root(leaves):
    """The Merkle root over the data of leaves, level by level."""
    level = [hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\1" + p[0] + p[1]).digest() if len(p) == 2 else p[0] for p in pairs]
    return level[0].hex()


def key(mix, source, text):
    return hashlib.sha256(f"od-shuffle-v1|{mix}|{source}|{text}".encode()).digest()


def build(mix, components, references, *, seq_len, unit, per_shard, limit=None):
    """Byte-tokenized shards of ``components`` ``[(source, ratio, texts)]``: (shards, removed ids, dropped rows)."""
    met = set().union(*map(grams, references)) if references else set()
    removed, sources = [], []
    for source, ratio, texts in components:
        clean = [text for text in texts if not grams(text) & met]
        removed += [key(mix, source, text).hex() for text in texts if grams(text) & met]
        documents = sorted((key(mix, source, text), text) for text in clean)[:limit]
        sources.append((ratio, [(k, [b + 3 for b in text.encode()] + [260]) for k, text in documents]))
    total = min(sum(len(ids) for _, ids in documents) / ratio for ratio, documents in sources)
    chosen = []
    for ratio, documents in sources:
        given = 0
        for k, ids in documents:
            if given >= ratio * total:
                break
            chosen.append((k, ids))
            given += len(ids)
    stream = [one for _, ids in sorted(chosen) for one in ids]
    rows = [stream[at : at + seq_len + 1] for at in range(0, len(stream) - seq_len, seq_len + 1)]
    kept = rows[: len(rows) - len(rows) % unit]
    data = [b"".join(one.to_bytes(2, "little") for one in row) for row in kept]
    shards = [b"".join(data[at : at + per_shard]) for at in range(0, len(data), per_shard)]
    return shards, sorted(removed), len(rows) - len(kept)
