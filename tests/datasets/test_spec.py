"""Signed specs, and what they let a reader believe of a base."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import traceback

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from r2d1.datasets import (
    DatasetSpec,
    DocumentError,
    bind_manifest,
    build_spec,
    generate_key,
    load_key,
    parse_spec,
    sign_spec,
    verify_spec,
    write_spec,
)
from r2d1.errors import ConfigError, FormatError, IntegrityError
from tests.datasets.making import GOLDEN

SET = GOLDEN / "expected" / "bpe"
SEED = bytes(range(32))
#: The canonical form of the golden set's spec, written out by hand: keys sorted, no white space.
CANONICAL = (
    '{"assign_unit":4,"depth":9,"merkle_root":"1f03135b621ef180814dd0f8689570dd4a5babe567d3be202c95c02752b14da5",'
    '"n_samples":264,"note":"\u20ac \\u001f","sample_format":"u16[seq_len+1] token ids","seq_len":32,'
    '"shard_sha256_root":"ce382d057189ddbcaecc03ea4634f92d339fb9e68fcc64d01fdf7e2cfde161c7",'
    '"shard_uri_template":"{shard_sha256}","source":{"mix_id":"golden-a-bpe",'
    '"registry_sha256":"18226aefc959cf9667e6658f265136ef2b40769477592b94508759d4d97a42e1"},'
    '"tokenizer":{"name":"tales-bpe","sha256":"b274951cc79036fb4cac641f9d524631ea0c4d1c8be0713a17cddefdbf782e27"},'
    '"unit_sha256_root":"4ee21dc988f78306c9283790810e482fbd3a1e8b13576781b97a4509a5b8fe0e"}'
)


@pytest.fixture
def key():
    return Ed25519PrivateKey.from_private_bytes(SEED)


@pytest.fixture
def public(key):
    return key.public_key().public_bytes_raw().hex()


@pytest.fixture
def signed(key):
    return sign_spec(build_spec(SET, added={"note": "€ \x1f"}), key)


def altered(spec, **changes):
    tree = json.loads(spec.to_bytes())
    for name, value in changes.items():
        part = tree
        *path, last = name.split("__")
        for step in path:
            part = part[step]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return json.dumps(tree).encode()


def test_canonical_form_and_signature_written_out_by_hand(signed, key, public):
    """What is signed is the context, LF and the canonical form; the signature is plain Ed25519 over it."""
    message = b"r2d1-dataset-spec-v1\n" + CANONICAL.encode()
    assert signed.signed_bytes() == message
    assert hashlib.sha256(message).hexdigest() == "ef443f32bd452ec2c35655c47033a92c80fa60b982d89bcb421b9457d21f0110"
    assert public == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    signature = json.loads(signed.to_bytes())["signature"]
    assert signature == {"alg": "ed25519", "key": public, "sig": key.sign(message).hex()}
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature["sig"]), message)


def test_a_signed_spec_is_believed(signed, public):
    """A spec read back from bytes in another key order and white space verifies, and nothing of it is lost."""
    data = json.dumps(json.loads(signed.to_bytes()), indent=None, sort_keys=False, ensure_ascii=False).encode()
    found = verify_spec(data, trusted=["0" * 64, public.upper()])
    assert found == signed
    assert found.added == {"note": "€ \x1f"}
    assert verify_spec(signed, trusted={public}) is signed


@pytest.mark.parametrize(
    "change",
    [
        {"note": "other"},
        {"note": ...},
        {"more": 1},
        {"seq_len": 31},
        {"tokenizer__name": "other"},
        {"source__mix_id": "other"},
        {"merkle_root": "0" * 64},
        {"n_samples": 268},
        {"shard_uri_template": "x/{shard_sha256}"},
        {"signature__sig": "0" * 128},
    ],
)
def test_any_change_breaks_the_signature(signed, public, change):
    """Nothing of a spec can be changed, added or taken away without its signature failing."""
    with pytest.raises(IntegrityError, match="is not what the key 03a107bf.* signed"):
        verify_spec(altered(signed, **change), trusted=[public])


def test_who_signed_matters(signed, key, public):
    """Unsigned specs, strangers' keys, unknown algorithms and an empty list of trusted keys are refused."""
    with pytest.raises(IntegrityError, match="is not signed"):
        verify_spec(altered(signed, signature=...), trusted=[public])
    with pytest.raises(IntegrityError, match="is not a trusted one"):
        verify_spec(signed, trusted=["0" * 64])
    with pytest.raises(DocumentError, match="signature.alg is 'rsa'; this version of r2d1 knows 'ed25519' only"):
        verify_spec(altered(signed, signature__alg="rsa"), trusted=[public])
    for trusted in ([], ["xyz"], [public, ""]):
        with pytest.raises(ConfigError, match="give the public keys that you trust"):
            verify_spec(signed, trusted=trusted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"note": 1.0}, "note is the float 1.0; a spec has integers only"),
        ({"note": {"a": [1, 2.5]}}, r"note.a\[1\] is the float 2.5"),
        ({"note": 2**53}, "note is 9007199254740992, beyond"),
        ({"note": -(2**53)}, "beyond 2"),
        ({"depth": 8}, "depth is not 9"),
        ({"depth": ...}, "depth is missing"),
        ({"seq_len": None}, "seq_len is None"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"tokenizer__sha256": "x"}, "tokenizer.sha256 is 'x'"),
        ({"source__more": 1}, "source.'more' is not a field"),
        ({"signature__key": "0" * 63}, "signature.key is"),
        ({"signature__more": 1}, "signature.'more' is not a field"),
        ({"shard_uri_template": "a"}, "must occur exactly once"),
    ],
)
def test_malformed_specs_name_their_fields(signed, change, said):
    """Floats, integers beyond 2^53-1 and malformed fields are named, before any signature is looked at."""
    with pytest.raises(DocumentError, match=said):
        parse_spec(altered(signed, **change))


def test_what_an_issuer_adds_is_checked_when_it_is_added():
    """Added fields cannot shadow the spec's own, and must be signable."""
    with pytest.raises(ConfigError, match="has the field 'depth' of its own"):
        build_spec(SET, added={"depth": 1})
    with pytest.raises(ConfigError, match="has the field 'signature' of its own"):
        build_spec(SET, added={"signature": 1})
    with pytest.raises(DocumentError, match="weight is the float 0.5"):
        build_spec(SET, added={"weight": 0.5})


def test_a_spec_is_not_made_of_a_set_that_is_not_whole(golden_set):
    """Shards that are missing or of another size are named; they are not read."""
    (golden_set / "shard-00001.u16").unlink()
    path = golden_set / "shard-00002.u16"
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(FormatError, match=r"shard-00001.u16 is missing; shard-00002.u16 has \d+ bytes, the manifest"):
        build_spec(golden_set)


def test_a_spec_may_be_text(signed):
    """What was read as text parses like its bytes."""
    assert parse_spec(signed.to_bytes().decode()) == signed


def test_a_spec_is_not_made_of_a_set_that_contradicts_itself(golden_set):
    """Manifest and build record must agree before anything is signed; a missing one is named."""
    path = golden_set / "build_record.json"
    tree = json.loads(path.read_bytes())
    tree["removed_ids"] = []
    path.write_text(json.dumps(tree))
    with pytest.raises(DocumentError, match="removed_ids have the hash"):
        build_spec(golden_set)
    path.unlink()
    with pytest.raises(ConfigError, match=r"build_record.json cannot be read"):
        build_spec(golden_set)


def test_keys_are_kept_private(tmp_path):
    """The key file has mode 0600 whatever the umask, is never replaced, and signs what its public key verifies."""
    old = os.umask(0)
    try:
        public = generate_key(tmp_path / "key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    spec = sign_spec(build_spec(SET), load_key(tmp_path / "key"))
    write_spec(tmp_path / "spec.json", spec)
    assert verify_spec((tmp_path / "spec.json").read_bytes(), trusted=[public]) == spec
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(ConfigError, match="cannot be made: File exists; an existing one is never replaced"):
        generate_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before


def test_files_that_are_no_key_do_not_leak(tmp_path):
    """What is no private key is refused by its path, without a word of its content; a missing one is named."""
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----\nsecretsecret\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="is not an unencrypted Ed25519 private key") as caught:
        load_key(tmp_path / "key")
    assert "secretsecret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_key(tmp_path / "nokey")


MANIFEST = (SET / "manifest.json").read_bytes()


def test_a_bases_manifest_is_believed_as_far_as_the_spec_goes(signed):
    """The true manifest is taken; its tokenizer and extra only where the spec repeats them."""
    found = bind_manifest(signed, MANIFEST)
    assert found.tokenizer == signed.tokenizer
    assert found.extra == {}
    bare = DatasetSpec(signed.fragment)
    assert bind_manifest(bare, MANIFEST).tokenizer is None
    told = DatasetSpec(signed.fragment, added={"extra": json.loads(MANIFEST)["extra"]})
    assert bind_manifest(told, MANIFEST).extra == json.loads(MANIFEST)["extra"]
    assert bind_manifest(told, MANIFEST).unit_sha256s == found.unit_sha256s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"merkle_root": "0" * 64}, "merkle_root is '0000"),
        ({"tokenizer": {"name": "evil", "sha256": "0" * 64}}, "tokenizer is TokenizerPin"),
        ({"seq_len": 31}, "seq_len is 31, not 32"),
        ({"shard_uri_template": "x/{shard_sha256}"}, "shard_uri_template is 'x/"),
        ({"unit_sha256s": ["0" * 64] * 66}, "unit_sha256_root is 4ee21d.*, but the list has the root"),
        ({"unit_sha256s": []}, "unit_sha256s has 0, where n_samples 264 asks for 66"),
        ({"n_samples": 260, "unit_sha256s": ["0" * 64] * 65}, "the list has the root"),
        ({"unit": 2}, "unit_sha256s has 66, where n_samples 264 asks for 132"),
        ({"samples_per_shard": 32}, "asks for 9"),
        ({"extra": 7}, "extra is 7"),
    ],
)
def test_a_hostile_bases_manifest_can_only_fail(signed, change, said):
    """Whatever of a manifest is not what the spec or the hashes bind makes it refused, with the field named."""
    tree = {**json.loads(MANIFEST), **change}
    with pytest.raises(IntegrityError, match=f"the base's manifest.json.*{said}"):
        bind_manifest(signed, json.dumps(tree).encode())


def test_a_consistent_forgery_is_refused(signed):
    """A manifest of another set, right in itself, is not the one that the spec describes."""
    other = (GOLDEN / "expected" / "bytes" / "manifest.json").read_bytes()
    with pytest.raises(IntegrityError, match="is not the one the spec describes: merkle_root is "):
        bind_manifest(signed, other)


def test_extra_must_be_equal_where_the_spec_repeats_it(signed):
    """A spec that repeats ``extra`` binds it exactly: one is not true."""
    manifest = json.dumps({**json.loads(MANIFEST), "extra": {"flag": True}}).encode()
    assert bind_manifest(DatasetSpec(signed.fragment, added={"extra": {"flag": True}}), manifest).extra == {
        "flag": True
    }
    for other in ({"flag": 1}, {}, {"flag": True, "more": None}):
        with pytest.raises(IntegrityError, match="extra is"):
            bind_manifest(DatasetSpec(signed.fragment, added={"extra": other}), manifest)
