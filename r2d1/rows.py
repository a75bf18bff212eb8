"""The catalog's row as a copy of the head: written, then the head is read again until both agree (formats §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from r2d1.catalog import Catalog, Row
from r2d1.documents import Head
from r2d1.errors import R2D1Error
from r2d1.events import Teller
from r2d1.heads import read_head, read_manifest
from r2d1.keys import CheckpointKeys
from r2d1.manifest import Manifest
from r2d1.objects import ObjectStore
from r2d1.sidecar import row_metadata
from r2d1.strictjson import dump
from r2d1.tasks import run_bounded

#: Larger metadata stays in the sidecar; D1 takes rows below 2 MB (facts: D1 limits).
MAX_METADATA_BYTES = 1_000_000
_ROUNDS = 10
_AT_ONCE = 8


def make_row(of: CheckpointKeys, head: Head, manifest: Manifest, tell: Teller) -> Row:
    """The row of a head; metadata that does not fit is replaced by the key of the sidecar that holds it."""
    text, lost = row_metadata(manifest.metadata)
    for name in lost:
        tell.notice(
            "warning", f"{of.name}: metadata {name} is not a JSON number; the row has null", once=f"{of} {name}"
        )
    if len(text.encode()) > MAX_METADATA_BYTES:
        text = dump({"r2d1_metadata": of.sidecar(head.prefix)})
        tell.notice(
            "warning", f"{of.name}: metadata over {MAX_METADATA_BYTES} bytes stays in the sidecar", once=f"{of} big"
        )
    return Row(of.job_id, of.name, head.epoch, head.timestamp, head.prefix, text)


async def settle_rows(
    store: ObjectStore,
    catalog: Catalog,
    names: Sequence[CheckpointKeys],
    tell: Teller,
    known: Mapping[str, Manifest] | None = None,
) -> dict[CheckpointKeys, Head | None]:
    """Make the rows of ``names`` (one job's) copies of their heads; returns the heads they agree with.

    ``known`` maps a prefix to its manifest where the caller has just written it. A name without a head keeps
    whatever row it has; a deleted head takes the row away.
    """
    agreed: dict[CheckpointKeys, Head | None] = {}
    heads = await _read_heads(store, names)
    for _ in range(_ROUNDS):
        await _write(store, catalog, heads, tell, known or {})
        again = await _read_heads(store, list(heads))
        agreed.update({of: head for of, head in again.items() if head == heads[of]})
        heads = {of: head for of, head in again.items() if head != heads[of]}
        if not heads:
            return agreed
    raise R2D1Error(f"the heads of {', '.join(of.name for of in heads)} keep changing; their rows are written later")


async def _read_heads(store: ObjectStore, names: Sequence[CheckpointKeys]) -> dict[CheckpointKeys, Head | None]:
    heads: dict[CheckpointKeys, Head | None] = {}

    async def read(of: CheckpointKeys) -> None:
        stored = await read_head(store, of)
        heads[of] = stored.value if stored else None

    await run_bounded(_AT_ONCE, read, names)
    return heads


async def _write(
    store: ObjectStore,
    catalog: Catalog,
    heads: Mapping[CheckpointKeys, Head | None],
    tell: Teller,
    known: Mapping[str, Manifest],
) -> None:
    rows: list[Row] = []

    async def make(of: CheckpointKeys) -> None:
        head = heads[of]
        if head is not None and not head.deleted:
            manifest = known.get(head.prefix) or await read_manifest(store, of, head)
            if manifest is not None:  # else the head has moved on, and is read again
                rows.append(make_row(of, head, manifest, tell))

    await run_bounded(_AT_ONCE, make, heads)
    if rows:
        await catalog.put(rows)
    gone = [of for of, head in heads.items() if head is not None and head.deleted]
    if gone:
        await catalog.remove(gone[0].job_id, [of.name for of in gone])
