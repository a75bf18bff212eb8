"""What the commands that take a job or one checkpoint of it were given."""

from __future__ import annotations

from r2d1 import keys
from r2d1.errors import UriError
from r2d1.uris import Job, Named, parse_job_uri


def job_target(uri: str) -> Job | Named:
    """``parse_job_uri``, with a word on ``latest``, which only reading commands know."""
    job, slash, name = uri.rstrip("/").rpartition("/")
    if slash and name == "latest":
        raise UriError(
            f"{keys.shown(uri)}: 'latest' is for `r2d1 pull` and `r2d1 verify`; here a checkpoint is named as it is "
            f"called, and `r2d1 ls {job}` lists them, newest first"
        )
    return parse_job_uri(uri)
