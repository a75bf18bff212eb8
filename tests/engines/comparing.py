"""The recorded tables of docs/engines.md: made from live answers, with a reason for each difference.

``python -m tests.engines.comparing`` writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from r2d1.testing import D1Double, Rules, S3Double
from tests.contract.objects import ObjectStoreContract
from tests.contract.test_objects import TestR2Store
from tests.engines import d1_requests, install, s3_requests, servers
from tests.engines.test_object_contract import TestCloudflareR2, TestRclone, TestSeaweedFS

PAGE = install.HERE.parent.parent / "docs" / "engines.md"
BEGIN, END = "<!-- recorded: begin -->", "<!-- recorded: end -->"

Answers = Mapping[str, Mapping[str, str]]
#: Column of the tables → what it stands for.
DOUBLE, CLOUDFLARE = "S3Double", "R2, local"
D1_DOUBLE, D1_ENGINE = "D1Double", "D1, local"

_SOURCES = {
    "checksums": (
        "The local R2 has no place for checksums other than MD5 and ignores `x-amz-checksum-*`; real R2 verifies, keeps "
        "and tells them (Cloudflare's own list of gaps, `miniflare/src/workers/r2/s3/index.worker.ts`; the table in "
        "developers.cloudflare.com/r2/api/s3/api/). The double does as real R2, and SeaweedFS does so too."
    ),
    "chunked": (
        "Real R2 refuses `aws-chunked` bodies with 501; the local one keeps the framing as if it were the body, which "
        "its source lists as a gap. The double does as real R2. r2d1 never sends such a body."
    ),
    "length": (
        "Real R2 answers 411 MissingContentLength (developers.cloudflare.com/r2/api/error-codes/); the local one fails "
        "with 500. The double does as documented."
    ),
    "long key": (
        "The local R2 knows the limit of 1,024 bytes and the code InvalidObjectName (10020) behind it, but its S3 front "
        "turns both into a bare 500. The double answers with the code."
    ),
    "unicode": (
        "Real R2 keeps one object for all spellings that have one NFC form (developers.cloudflare.com/r2/reference/"
        "unicode-interoperability/); the local one compares bytes. The double does as documented; r2d1 sends NFC only."
    ),
    "metadata": (
        "Real R2 takes 8,192 bytes and then answers MetadataTooLarge (developers.cloudflare.com/r2/platform/limits/); "
        "the local one takes 2,048 and then fails with 500. The double does as documented; r2d1 sends under 100 bytes."
    ),
    "token": (
        "What R2 answers to a token that it never gave is not documented; the local one lists nothing. The double "
        "refuses, so that a client that makes up tokens is found out."
    ),
    "part etag": (
        "The local R2 gives parts random ETags; those of real R2 are the MD5 of the part (developers.cloudflare.com/r2/"
        "objects/multipart-objects/), and so are the double's. r2d1 works with either: it keeps what it was given."
    ),
    "listing of uploads": (
        "ListParts and ListMultipartUploads are among the local R2's gaps; real R2 has both (developers.cloudflare.com/"
        "r2/api/s3/api/), and so has the double. `Rules(missing=...)` takes them away, as r2d1 must do without."
    ),
    "order": (
        "Real R2 sorts the parts of a Complete itself (release notes of R2, 2024-01-26); the local one takes the last "
        "named for the last part. The double does as real R2; r2d1 names them in order."
    ),
    "unequal parts": (
        'Real R2 answers 400 InvalidPart, "All non-trailing parts must have the same length." (reports of several '
        "clients); in the local one the right inner error (10048) falls through its S3 front as NoSuchUpload. The double "
        "does as real R2. r2d1's parts are equal."
    ),
    "condition on Complete": (
        "Real R2 holds conditions on Complete, and an upload whose condition fails is gone (developers.cloudflare.com/r2/"
        "api/s3/conditional-operations/, release notes of 2023-08-11); the local one ignores them. The double does as "
        "real R2. No ship of r2d1 needs such a condition."
    ),
    "JSON": "The words are those of the JSON parser; status and code are what counts.",
    "named": (
        "D1 documents `?` and `?NNN` only; its engine takes a named parameter all the same, by position. The double "
        "refuses what is not documented."
    ),
}

#: Every row in which a double differs from Cloudflare's engine → why. A row that no longer differs must go.
EXPLAINED = {
    "PUT, aws-chunked with a streaming signature": "chunked",
    "PUT, aws-chunked with a trailing checksum": "chunked",
    "PUT without a length (chunked)": "length",
    "PUT, key of 1,025 bytes": "long key",
    "GET by NFC what was PUT by NFD": "unicode",
    "PUT, 3,000 bytes of metadata": "metadata",
    "PUT, 9,000 bytes of metadata": "metadata",
    **{
        f"PUT, {kind}": "checksums"
        for name in ("x-amz-checksum-sha256", "x-amz-checksum-crc64nvme", "x-amz-checksum-crc32")
        for kind in (f"right {name}", f"wrong {name}", f"{name} that is none")
    },
    "PUT, two checksums": "checksums",
    "HEAD, x-amz-checksum-mode": "checksums",
    "list, a token that is none": "token",
    "UploadPart": "part etag",
    "UploadPart, last": "part etag",
    "UploadPart again with other bytes": "part etag",
    "UploadPart, right CRC64NVME": "checksums",
    "UploadPart, wrong CRC64NVME": "checksums",
    "ListParts": "listing of uploads",
    "ListParts, unknown upload": "listing of uploads",
    "ListMultipartUploads": "listing of uploads",
    "Complete, parts named last first": "order",
    "Complete, unequal parts": "unequal parts",
    "Complete, a last part larger than the others": "unequal parts",
    "Complete If-None-Match: *, there": "condition on Complete",
    "HEAD after it": "condition on Complete",
    "no JSON": "JSON",
    "NaN in the JSON": "JSON",
    "a named value": "named",
}


def s3_answers(engines: Sequence[servers.S3Engine]) -> dict[str, dict[str, dict[str, str]]]:
    """The answers of the double and of these engines, by column, title and request."""
    key = servers.KEY
    rules = Rules(write_interval_s=0.0)  # else every second write to a key is a matter of time
    with S3Double(rules=rules, access_key=key.access_key, secret_key=key.secret_key) as double:
        found = {DOUBLE: s3_requests.answers_of(double.url)}
    names = {"cloudflare": CLOUDFLARE, "seaweedfs": "SeaweedFS", "rclone": "rclone"}
    return found | {names[engine.server.name]: s3_requests.answers_of(engine.endpoint) for engine in engines}


def d1_answers(engine: servers.Cloudflare) -> dict[str, dict[str, dict[str, str]]]:
    """The answers of the D1 double and of the engine; SQLite's offsets are left out of both."""
    with D1Double(
        account_id=servers.ACCOUNT_ID, database_id=servers.DATABASE_ID, api_token=servers.API_TOKEN
    ) as double:
        found = {D1_DOUBLE: d1_requests.answers_of(double.url)}
    found[D1_ENGINE] = d1_requests.answers_of(engine.d1_base_url)
    return {
        column: {
            title: {name: d1_requests.without_offsets(answer) for name, answer in rows.items()}
            for title, rows in answers.items()
        }
        for column, answers in found.items()
    }


def differences(columns: Mapping[str, Answers]) -> set[str]:
    """The requests to which the first two columns, a double and Cloudflare's engine, answer differently."""
    double, engine, *_ = columns.values()
    return {name for title, rows in double.items() for name in rows if rows[name] != engine[title].get(name)}


def recorded(s3: Mapping[str, Answers], d1: Mapping[str, Answers]) -> str:
    """The tables as they stand in the page, in Markdown."""
    return "\n".join(
        [
            "## What each server is not expected to do",
            "",
            *_expectations(),
            "## S3, request by request",
            "",
            *_tables(s3),
            "## D1, request by request",
            "",
            *_tables(d1),
            "## Why they differ",
            "",
            *(f"- **{title}**: {text}" for title, text in _SOURCES.items()),
        ]
    )


def _expectations() -> Iterator[str]:
    """The attributes of the object store suite that each server's class lowers."""
    columns = {DOUBLE: TestR2Store, CLOUDFLARE: TestCloudflareR2, "SeaweedFS": TestSeaweedFS, "rclone": TestRclone}
    yield from _head("expectation", columns)
    for name, usual in vars(ObjectStoreContract).items():
        if name.startswith("_") or not isinstance(usual, bool | int | float):
            continue
        told = ["as R2" if getattr(each, name) == usual else str(getattr(each, name)) for each in columns.values()]
        if set(told) != {"as R2"}:
            yield _row([f"`{name}`", *told])
    yield ""


def _tables(columns: Mapping[str, Answers]) -> Iterator[str]:
    first, *_ = columns.values()
    for title, rows in first.items():
        yield f"### {title}"
        yield ""
        yield from _head("request", [*columns, "why they differ"])
        for name in rows:
            told = [answers[title].get(name, "not asked") for answers in columns.values()]
            shown = [f"`{answer}`" if at == 0 or answer != told[0] else "same" for at, answer in enumerate(told)]
            yield _row([name, *shown, EXPLAINED.get(name, "")])
        yield ""


def _head(first: str, others: Iterable[str]) -> Iterator[str]:
    names = [first, *others]
    yield _row(names)
    yield _row(["---"] * len(names))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def recorded_in(page: str) -> str:
    """What stands between the page's two marks."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def replaced_in(page: str, text: str) -> str:
    """The page with ``text`` between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Ask every server, and write what they answered into the page."""
    logs = install.CACHE / "logs" / "comparing"
    with ExitStack() as stack:
        cloudflare = stack.enter_context(servers.cloudflare(logs))
        others = [stack.enter_context(start(logs)) for start in (servers.seaweedfs, servers.rclone)]
        s3, d1 = s3_answers([cloudflare, *others]), d1_answers(cloudflare)
    page = Path(PAGE)
    page.write_text(replaced_in(page.read_text(), recorded(s3, d1)))
    for unexplained in sorted(differences(s3) | differences(d1) - EXPLAINED.keys()):
        if unexplained not in EXPLAINED:
            print(f"not explained: {unexplained}")


if __name__ == "__main__":
    main()
