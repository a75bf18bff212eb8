"""Verification: every error named with its file, and what was not read named too."""

from __future__ import annotations

import json
import shutil

import anyio
import pytest

from r2d1.datasets import Progress, verify_shard_set, verify_shard_set_async
from r2d1.errors import ConfigError
from tests.datasets.making import GOLDEN, some_shards, write_set

UNVOUCHED = "manifest.json: tokenizer, extra.dropped_tail_samples: nothing in the set vouches for it"


def problems_of(directory, **options):
    return [str(problem) for problem in verify_shard_set(directory, **options).problems]


@pytest.mark.parametrize("name", ["bytes", "bpe"])
@pytest.mark.parametrize("workers", [1, 2])
def test_golden_sets_are_right(name, workers):
    """The original's sets have no error, and the report says that everything was read."""
    report = verify_shard_set(GOLDEN / "expected" / name, workers=workers)
    assert report.ok, report.lines()
    assert report.mode == "full"
    assert (report.units_read, report.bytes_read) == (report.units_total, report.bytes_total)
    assert report.not_checked == (UNVOUCHED, "build_record.json: registry_sha256: nothing in the set vouches for it")
    assert any("merkle_root over all rows" in line for line in report.lines())


def test_one_changed_byte_names_shard_and_unit(golden_set):
    """A flipped bit shows in the hash of its shard and of its unit, not elsewhere, and leaves the tree unchecked."""
    path = golden_set / "shard-00040.u16"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    report = verify_shard_set(golden_set)
    texts = [str(problem) for problem in report.problems]
    assert len(texts) == 2
    assert texts[0].startswith("shard-00040.u16: sha256 is ")
    assert texts[1] == "shard-00040.u16: the sha256 of 1 of its 4 units differ from the manifest: 161"
    assert report.not_checked[:1] == ("merkle_root: it needs every shard right",)


def test_wrong_lists_that_agree_with_each_other_are_caught(golden_set):
    """A manifest whose tree does not fit its rows is wrong even if all of its lists fit them."""
    path = golden_set / "manifest.json"
    tree = json.loads(path.read_bytes())
    true_root, tree["merkle_root"] = tree["merkle_root"], "0" * 64
    path.write_text(json.dumps(tree))
    texts = problems_of(golden_set)
    assert f"manifest.json: merkle_root is {'0' * 64}, the rows have {true_root}" in texts
    both = f"fragment.merkle_root is '{true_root}', but in manifest.json merkle_root is '{'0' * 64}': "
    assert any(text.startswith(f"build_record.json: {both}") for text in texts)


def test_a_wrong_hash_in_the_list_of_shards_only(golden_set):
    """A shard hash that contradicts right unit hashes is told by the root over the list."""
    path = golden_set / "manifest.json"
    tree = json.loads(path.read_bytes())
    tree["shard_sha256s"][0] = "0" * 64
    path.write_text(json.dumps(tree))
    assert any("manifest.json: shard_sha256_root is" in text for text in problems_of(golden_set))


def test_build_records_are_compared(golden_set):
    """Removed ids, mix and fragment must agree with the manifest; a lost build record of a built set is missing."""
    path = golden_set / "build_record.json"
    tree = json.loads(path.read_bytes())
    tree["removed_ids"].pop()
    tree["fragment"]["source"]["mix_id"] = "other"
    tree["fragment"]["assign_unit"] = 8
    path.write_text(json.dumps(tree))
    texts = problems_of(golden_set)
    names = ["fragment.assign_unit", "removed_ids", "fragment.source.mix_id"]
    assert [text.split(" ")[1] for text in texts] == names
    assert "assign_unit is 8, but in manifest.json unit is 4: " in texts[0]
    assert "mix_id is 'other', but in manifest.json extra.mix_id is 'golden-a-bytes': " in texts[2]
    path.unlink()
    assert problems_of(golden_set) == ["build_record.json: is missing"]


def test_sets_without_a_build_record_say_so(tmp_path):
    """A set that was not built from a mix needs no build record, and the report says that none was checked."""
    write_set(tmp_path, some_shards(2, 64), seq_len=3, unit=2, per_shard=8)
    report = verify_shard_set(tmp_path)
    assert report.ok
    assert report.not_checked[:1] == ("build_record.json: this set has none",)


def test_the_extra_of_a_built_set_has_its_fields_and_no_others(golden_set):
    """What the format does not have there, or wants there, is a problem of the manifest."""
    path = golden_set / "manifest.json"
    tree = json.loads(path.read_bytes())
    tree["extra"]["note"] = tree["extra"].pop("dropped_tail_samples")
    path.write_text(json.dumps(tree))
    assert problems_of(golden_set) == [
        "manifest.json: extra.dropped_tail_samples is missing",
        "manifest.json: extra.note is not a field of a set that was built from a mix",
    ]


def test_one_of_a_kind_is_told_as_one(tmp_path):
    """One shard and one error are no "1 shards" and "1 errors"."""
    write_set(tmp_path, some_shards(1, 64), seq_len=3, unit=8, per_shard=8)
    assert " 1 shard" in " ".join(verify_shard_set(tmp_path).checked)
    (tmp_path / "shard-00000.u16").unlink()
    lines = verify_shard_set(tmp_path).lines()
    assert any(": 1 error;" in line for line in lines)
    assert not any("1 shards" in line or "1 errors" in line for line in lines)


def test_foreign_files_are_told_and_no_error(golden_set):
    """A file that no set has is neither read nor a problem; a temporary beside a shard is such a file."""
    (golden_set / "NOTES").write_text("x")
    (golden_set / "shard-00001.u16.7.tmp").write_text("x")
    report = verify_shard_set(golden_set)
    assert report.ok
    assert report.unlisted == ("NOTES", "shard-00001.u16.7.tmp")
    assert "not part of the set, not read: NOTES" in report.lines()


def test_unreadable_things_are_problems_not_crashes(golden_set):
    """A folder in a shard's place, a broken link and a manifest that is no JSON are named."""
    (golden_set / "shard-00000.u16").unlink()
    (golden_set / "shard-00000.u16").mkdir()
    (golden_set / "shard-00001.u16").unlink()
    (golden_set / "shard-00001.u16").symlink_to("nowhere")
    assert problems_of(golden_set) == ["shard-00000.u16: is not a file", "shard-00001.u16: is missing"]
    (golden_set / "manifest.json").write_bytes(b"\xff")
    report = verify_shard_set(golden_set)
    assert [problem.file for problem in report.problems] == ["manifest.json"]
    assert "every shard" in report.not_checked[0]
    shutil.rmtree(golden_set)
    with pytest.raises(ConfigError, match="is not a directory"):
        verify_shard_set(golden_set)


def test_samples_read_what_they_say(golden_set):
    """A sample reads as many units as asked for, says "sample", and lists what it cannot tell."""
    steps = []
    report = verify_shard_set(golden_set, sample=7, on_progress=steps.append)
    assert report.ok
    assert (report.mode, report.units_read, report.bytes_read) == ("sample", 7, 7 * 4 * 66)
    assert report.not_checked[:2] == ("the other 348 units", "sha256 of the shards, merkle_root: a sample cannot tell")
    assert report.lines()[0].startswith("sample verification of ")
    assert steps[-1] == Progress("verify", 7 * 264, 7 * 264, "bytes")
    with pytest.raises(ConfigError, match="sample is 0"):
        verify_shard_set(golden_set, sample=0)


def test_a_sample_of_everything_finds_a_changed_unit(golden_set):
    """A sample larger than the set reads each unit once, and names the one that changed."""
    path = golden_set / "shard-00040.u16"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    report = verify_shard_set(golden_set, sample=10_000)
    assert report.units_read == 355
    assert [problem.file for problem in report.problems] == ["shard-00040.u16"]
    assert "sha256 of unit 163 is " in report.problems[0].text


def test_many_bad_units_are_told_in_ranges(tmp_path):
    """Damage over many units is one problem with ranges, not one a unit."""
    write_set(tmp_path, some_shards(1, 64 * 8), seq_len=3, unit=1, per_shard=64)
    path = tmp_path / "shard-00000.u16"
    data = bytearray(path.read_bytes())
    for unit in [1, 2, 3, *range(10, 64, 2)]:
        data[8 * unit] ^= 255
    path.write_bytes(data)
    text = problems_of(tmp_path)[1]
    assert "30 of its 64 units differ from the manifest: 1-3, 10, 12, " in text
    assert text.endswith(" and 18 ranges more")


def test_workers_share_a_large_set(tmp_path):
    """Several workers find the same as one, in the same order, and progress reaches the whole size."""
    shards = some_shards(5, 24 * 2**20)
    write_set(tmp_path, shards, seq_len=32767, unit=8, per_shard=384)
    (tmp_path / "shard-00001.u16").write_bytes(shards[3])
    steps = []
    report = verify_shard_set(tmp_path, workers=2, on_progress=steps.append)
    assert [problem.file for problem in report.problems] == ["shard-00001.u16"] * 2
    assert "these are the bytes of shard-00003.u16" in report.problems[0].text
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].total == 5 * 24 * 2**20


def test_progress_that_raises_stops_the_work(golden_set):
    """An error of the caller's own progress function reaches the caller."""

    def refuse(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_shard_set(golden_set, on_progress=refuse)


async def test_the_async_form_reports_and_raises_alike(golden_set):
    """The coroutine gives the same report, and the same error."""
    assert await verify_shard_set_async(golden_set) == verify_shard_set(golden_set)
    with pytest.raises(ConfigError, match="workers is 0"):
        await verify_shard_set_async(golden_set, workers=0)


async def test_cancelling_the_async_form_ends_it(tmp_path):
    """A cancelled verification stops at the next step of progress instead of reading to the end."""
    write_set(tmp_path, some_shards(2, 32 * 2**20), seq_len=32767, unit=8, per_shard=512)
    scope = anyio.CancelScope()
    seen = []

    def cancel(progress):
        seen.append(progress)
        anyio.from_thread.run_sync(scope.cancel)

    with scope:
        await verify_shard_set_async(tmp_path, workers=1, on_progress=cancel)
    assert scope.cancelled_caught
    assert len(seen) == 1
