"""Datasets: shard sets, their building from text, their verification, and signed specs.

What is exported here is imported on first use. A library of the extra ``datasets`` that is missing then
gives a ``ConfigError`` that says how to install it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from r2d1.errors import ConfigError

if TYPE_CHECKING:
    from r2d1.bases import Base
    from r2d1.datasets.build import build_mix, build_mix_async
    from r2d1.datasets.built import BuildOptions, BuildReport, SourceReport
    from r2d1.datasets.cache import UnitCache
    from r2d1.datasets.fields import DocumentError
    from r2d1.datasets.labels import LabelsReport, parse_index, publish_labels, publish_labels_async
    from r2d1.datasets.layout import ShardLayout, default_samples_per_shard, plan_layout
    from r2d1.datasets.manifest import (
        BuildRecord,
        Fragment,
        MixSource,
        ShardManifest,
        TokenizerPin,
        parse_manifest,
        parse_record,
    )
    from r2d1.datasets.merkle import merkle_root
    from r2d1.datasets.mixes import Mix, Registry, Source, load_registry, parse_registry
    from r2d1.datasets.prefetching import Prefetch, prefetch
    from r2d1.datasets.publish import PublishReport, publish_shard_set, publish_shard_set_async
    from r2d1.datasets.report import Problem, VerifyReport
    from r2d1.datasets.sending import Conflict
    from r2d1.datasets.shardset import ShardSet, ShardSetWriter
    from r2d1.datasets.spec import (
        DatasetSpec,
        Signature,
        bind_manifest,
        build_spec,
        generate_key,
        load_key,
        parse_spec,
        sign_spec,
        verify_spec,
        write_spec,
    )
    from r2d1.datasets.unit_source import fetch_manifest, fetch_manifest_async
    from r2d1.datasets.verify import verify_shard_set, verify_shard_set_async
    from r2d1.datasets.workers import Progress

_ROOMS = {
    "build": ("build_mix", "build_mix_async"),
    "built": ("BuildOptions", "BuildReport", "SourceReport"),
    "cache": ("UnitCache",),
    "fields": ("DocumentError",),
    "labels": ("LabelsReport", "parse_index", "publish_labels", "publish_labels_async"),
    "layout": ("ShardLayout", "default_samples_per_shard", "plan_layout"),
    "manifest": (
        "BuildRecord",
        "Fragment",
        "MixSource",
        "ShardManifest",
        "TokenizerPin",
        "parse_manifest",
        "parse_record",
    ),
    "merkle": ("merkle_root",),
    "mixes": ("Mix", "Registry", "Source", "load_registry", "parse_registry"),
    "prefetching": ("Prefetch", "prefetch"),
    "publish": ("PublishReport", "publish_shard_set", "publish_shard_set_async"),
    "report": ("Problem", "VerifyReport"),
    "sending": ("Conflict",),
    "shardset": ("ShardSet", "ShardSetWriter"),
    "spec": (
        "DatasetSpec",
        "Signature",
        "bind_manifest",
        "build_spec",
        "generate_key",
        "load_key",
        "parse_spec",
        "sign_spec",
        "verify_spec",
        "write_spec",
    ),
    "unit_source": ("Base", "fetch_manifest", "fetch_manifest_async"),
    "verify": ("verify_shard_set", "verify_shard_set_async"),
    "workers": ("Progress",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}
#: The libraries of the extra ``datasets``, by the names they are imported under.
_EXTRA = frozenset(("cryptography", "duckdb", "numpy", "pyarrow", "rfc8785", "tokenizers"))

__all__ = [
    "Base",
    "BuildOptions",
    "BuildRecord",
    "BuildReport",
    "Conflict",
    "DatasetSpec",
    "DocumentError",
    "Fragment",
    "LabelsReport",
    "Mix",
    "MixSource",
    "Prefetch",
    "Problem",
    "Progress",
    "PublishReport",
    "Registry",
    "ShardLayout",
    "ShardManifest",
    "ShardSet",
    "ShardSetWriter",
    "Signature",
    "Source",
    "SourceReport",
    "TokenizerPin",
    "UnitCache",
    "VerifyReport",
    "bind_manifest",
    "build_mix",
    "build_mix_async",
    "build_spec",
    "default_samples_per_shard",
    "fetch_manifest",
    "fetch_manifest_async",
    "generate_key",
    "load_key",
    "load_registry",
    "merkle_root",
    "parse_index",
    "parse_manifest",
    "parse_record",
    "parse_registry",
    "parse_spec",
    "plan_layout",
    "prefetch",
    "publish_labels",
    "publish_labels_async",
    "publish_shard_set",
    "publish_shard_set_async",
    "sign_spec",
    "verify_shard_set",
    "verify_shard_set_async",
    "verify_spec",
    "write_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        raise ConfigError(f"{name} needs the library {missing}: pip install r2d1[datasets]") from exc
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
