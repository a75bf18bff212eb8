"""DatasetSpec: the signed word on what a dataset is, and what it lets a reader believe of an untrusted base.

A spec is the fragment of a build record, what its issuer adds, and an Ed25519 signature over
``r2d1-dataset-spec-v1``, LF, and the RFC 8785 form of everything but the signature (formats.md §9).
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from r2d1.datasets.canonical import canonical
from r2d1.datasets.fields import MAX_INTEGER, DocumentError, Fields, is_hex, load_object, shown
from r2d1.datasets.layout import MANIFEST_NAME, RECORD_NAME, shard_name
from r2d1.datasets.manifest import (
    FRAGMENT_FIELDS,
    Fragment,
    ShardManifest,
    TokenizerPin,
    dump_json,
    parse_manifest,
    parse_record,
    read_fragment,
)
from r2d1.datasets.shards import write_whole
from r2d1.datasets.verify import record_problems, size_problems
from r2d1.errors import ConfigError, FormatError, IntegrityError

SIGNED_CONTEXT = b"r2d1-dataset-spec-v1\n"
ALGORITHM = "ed25519"
_SPEC = "dataset spec"
#: How many shards an error names one by one.
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed: the public key and the signature, in hexadecimal."""

    key: str
    sig: str
    alg: str = ALGORITHM


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What a dataset is. ``seq_len``, ``tokenizer`` and ``extra`` of its manifest are bound only if repeated here.

    ``added`` are all other fields of the issuer; they are signed, and kept as they are.
    """

    fragment: Fragment
    seq_len: int | None = None
    tokenizer: TokenizerPin | None = None
    added: Mapping[str, object] = field(default_factory=dict)
    signature: Signature | None = None

    def to_json(self) -> dict[str, object]:
        """Every field of the spec but the signature: what is signed."""
        value = {**self.added, **self.fragment.to_json()}
        if self.seq_len is not None:
            value["seq_len"] = self.seq_len
        if self.tokenizer is not None:
            value["tokenizer"] = self.tokenizer.to_json()
        return value

    def to_bytes(self) -> bytes:
        """The spec as a JSON document."""
        value = self.to_json()
        if self.signature is not None:
            value["signature"] = {"alg": self.signature.alg, "key": self.signature.key, "sig": self.signature.sig}
        return dump_json(value, indent=2)

    def signed_bytes(self) -> bytes:
        """What a signature covers; ``DocumentError`` for a float, or an integer beyond 2^53-1, anywhere in the spec."""
        value = self.to_json()
        if problems := list(_number_problems(value, "")):
            raise DocumentError(_SPEC, problems)
        return SIGNED_CONTEXT + canonical(value, _SPEC)


def _number_problems(value: object, path: str) -> Iterator[str]:
    if isinstance(value, float):
        yield f"{path} is the float {value!r}; a spec has integers only"
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        yield f"{path} is {value}, beyond 2^53-1"
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _number_problems(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _number_problems(item, f"{path}[{at}]")


def build_spec(directory: str | os.PathLike[str], *, added: Mapping[str, object] | None = None) -> DatasetSpec:
    """An unsigned spec of the shard set in ``directory``, from its manifest and build record.

    ``added`` are further fields to be signed. What the documents say is taken as it stands: ``verify_shard_set``
    tells whether the shards are what they say. ``DocumentError`` when the two do not agree; ``FormatError`` for shards
    that are missing or of another size.
    """
    root = Path(directory)
    manifest = parse_manifest(_read(root / MANIFEST_NAME))
    record = parse_record(_read(root / RECORD_NAME))
    if problems := list(record_problems(record, manifest)):
        raise DocumentError(str(root / RECORD_NAME), problems)
    if wrong := [f"{shard_name(shard)} {text}" for shard, text in size_problems(root, manifest)]:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise FormatError(f"{root} is not whole, and nothing was signed: {'; '.join(wrong[:_NAMED])}{more}")
    spec = DatasetSpec(record.fragment, manifest.seq_len, manifest.tokenizer)
    return _with_added(spec, added or {})


def _with_added(spec: DatasetSpec, added: Mapping[str, object]) -> DatasetSpec:
    if taken := sorted(set(added) & {*spec.to_json(), "signature"}):
        raise ConfigError(f"a spec has the field {taken[0]!r} of its own; call what you add otherwise")
    found = replace(spec, added=dict(added))
    found.signed_bytes()
    return found


def parse_spec(data: bytes | str, document: str = _SPEC) -> DatasetSpec:
    """Read a spec, signed or not; ``DocumentError`` names every malformed field. The signature is not checked."""
    value = load_object(data, document)
    fields = Fields(document, value)
    spec = DatasetSpec(
        fragment=read_fragment(fields),
        seq_len=None if "seq_len" not in value else fields.integer("seq_len", least=1),
        tokenizer=None if "tokenizer" not in value else _read_pin(fields.child("tokenizer")),
        added={name: item for name, item in value.items() if name not in _OWN_FIELDS},
        signature=None if value.get("signature") is None else _read_signature(fields.child("signature")),
    )
    fields.problems += _number_problems({name: item for name, item in value.items() if name != "signature"}, "")
    fields.finish()
    return spec


_OWN_FIELDS = frozenset((*FRAGMENT_FIELDS, "seq_len", "tokenizer", "signature"))


def _read_pin(fields: Fields) -> TokenizerPin:
    fields.only(("name", "sha256"))
    return TokenizerPin(name=fields.text("name"), sha256=fields.hexadecimal("sha256"))


def _read_signature(fields: Fields) -> Signature:
    fields.only(("alg", "key", "sig"))
    algorithm = fields.text("alg")
    if algorithm and algorithm != ALGORITHM:
        fields.note("alg", f"is {shown(algorithm)}; this version of r2d1 knows {ALGORITHM!r} only")
    return Signature(key=fields.hexadecimal("key"), sig=fields.hexadecimal("sig", 128), alg=algorithm)


# Keys


def generate_key(path: str | os.PathLike[str]) -> str:
    """Write a new private key to a file that must not exist (PEM, PKCS #8, mode 0600).

    Returns the public key in hexadecimal; ``ConfigError`` when the file cannot be made.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise ConfigError(
            f"the key file {os.fspath(path)} cannot be made: {exc.strerror}; an existing one is never replaced"
        ) from exc
    with open(handle, "wb") as file:
        os.fchmod(handle, 0o600)
        file.write(pem)
        file.flush()
        os.fsync(handle)
    return _public_hex(key)


def load_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Read a private key that ``generate_key`` wrote; ``ConfigError``, without a word of its content, if it is none."""
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as exc:
        raise ConfigError(f"the key file {os.fspath(path)} cannot be read: {exc.strerror}") from exc
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{os.fspath(path)} is not an unencrypted Ed25519 private key in PEM form")
    return key


def _public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()


# Signing and believing


def sign_spec(spec: DatasetSpec, key: Ed25519PrivateKey) -> DatasetSpec:
    """The spec with a signature; an earlier one is replaced."""
    return replace(spec, signature=Signature(key=_public_hex(key), sig=key.sign(spec.signed_bytes()).hex()))


def verify_spec(data: bytes | str | DatasetSpec, *, trusted: Collection[str]) -> DatasetSpec:
    """Read a spec and check that one of the ``trusted`` public keys (hex) signed it.

    ``IntegrityError`` when it is unsigned, signed by another key, or not what was signed; ``DocumentError``
    when it is malformed or names an unknown algorithm; ``ConfigError`` when no key is given or one is none.
    """
    if not trusted or not all(is_hex(key.lower(), 64) for key in trusted):
        raise ConfigError("give the public keys that you trust, each as 64 hexadecimal digits")
    spec = data if isinstance(data, DatasetSpec) else parse_spec(data)
    signature = spec.signature
    if signature is None:
        raise IntegrityError("the dataset spec is not signed")
    if signature.alg != ALGORITHM:
        raise IntegrityError(f"the dataset spec is signed with {shown(signature.alg)}, not with {ALGORITHM}")
    if signature.key not in {key.lower() for key in trusted}:
        raise IntegrityError(f"the dataset spec is signed by the key {signature.key}, which is not a trusted one")
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key))
        public.verify(bytes.fromhex(signature.sig), spec.signed_bytes())
    except (InvalidSignature, ValueError) as exc:
        raise IntegrityError(f"the dataset spec is not what the key {signature.key} signed") from exc
    return spec


def bind_manifest(spec: DatasetSpec, data: bytes) -> ShardManifest:
    """What ``spec`` lets a reader believe of a manifest fetched from an untrusted base. Pure.

    The manifest must be well formed (both roots are recomputed from its lists, and counts compared), equal the
    spec in every field of its fragment, and in ``seq_len``, ``tokenizer`` and ``extra`` where the spec repeats
    them; otherwise ``IntegrityError`` names each difference. A ``tokenizer`` and ``extra`` that the spec does not
    repeat are left out of the result. ``seq_len`` and ``samples_per_shard`` that are not bound can only make
    every unit fail its hash.
    """
    try:
        manifest = parse_manifest(data)
    except DocumentError as exc:
        raise IntegrityError(f"the base's {exc}") from exc
    problems = [
        f"{each.manifest_field} is {shown(each.there)}, not {shown(each.here)}"
        for each in spec.fragment.differences(manifest)
    ]
    extra = spec.added.get("extra")
    for name, wanted, there in (
        ("seq_len", spec.seq_len, manifest.seq_len),
        ("tokenizer", spec.tokenizer, manifest.tokenizer),
        ("extra", extra, manifest.extra),
    ):
        if wanted is not None and not _same(wanted, there):
            problems.append(f"{name} is {shown(there)}, not {shown(wanted)}")
    if problems:
        raise IntegrityError(f"the base's {MANIFEST_NAME} is not the one the spec describes: {'; '.join(problems)}")
    return replace(
        manifest,
        tokenizer=manifest.tokenizer if spec.tokenizer is not None else None,
        extra=manifest.extra if extra is not None else {},
    )


def _same(wanted: object, there: object) -> bool:
    """Equality that tells ``1`` from ``true`` and from ``1.0``."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return json.dumps(wanted, sort_keys=True) == json.dumps(there, sort_keys=True)
    return wanted == there


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc


def write_spec(path: str | os.PathLike[str], spec: DatasetSpec) -> None:
    """Write a spec to a file, whole or not at all."""
    write_whole(Path(path), spec.to_bytes())
