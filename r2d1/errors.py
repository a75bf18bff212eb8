"""Every error r2d1 raises: one root, and a class wherever a caller would act differently."""

from __future__ import annotations

from collections.abc import Sequence


class R2D1Error(Exception):
    """Root of all errors raised by r2d1."""


class ConfigError(R2D1Error, RuntimeError):
    """A setting is missing, malformed or contradicts another; nothing was sent."""


class UriError(R2D1Error, ValueError):
    """A URI is not of one of the three documented forms."""


class NameRefused(R2D1Error, ValueError):
    """A checkpoint name, job id or path breaks the rules of names; shown escaped."""


class FormatError(R2D1Error):
    """A stored document (head, manifest, sidecar, record) cannot be understood."""


class CheckpointError(R2D1Error):
    """A local checkpoint cannot be shipped as it lies on disk; it is tried again when it changes."""


class Superseded(CheckpointError):
    """The checkpoint changed on disk while it was being shipped; the new state is settled anew."""


class IntegrityError(R2D1Error):
    """Bytes differ from what the manifest says, and stayed so after fetching them again."""


class MissingObjects(IntegrityError):
    """A committed checkpoint lacks objects; the message lists every key."""

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class CheckpointGone(R2D1Error):
    """The checkpoint was deleted while (or before) it was read; the message names what is newest now."""


class NoSpace(R2D1Error, OSError):
    """The disk has no room for what would be pulled; checked before the first byte."""


class UnsafeDestination(R2D1Error):
    """The destination would lead a write outside of it (a planted link), or cannot hold the files."""


class LockHeld(R2D1Error):
    """Another courier on this host already holds the directory."""


class Closed(R2D1Error):
    """The courier or fetcher was closed, or belongs to the parent of this forked process."""


class FlushError(R2D1Error):
    """``flush`` could not bring everything into the bucket; names what failed and what is unfinished."""

    def __init__(self, message: str, *, failed: Sequence[str] = (), unfinished: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.failed = tuple(failed)
        self.unfinished = tuple(unfinished)


class FlushTimeout(FlushError, TimeoutError):
    """``flush`` ran out of time with work left; the work goes on and can be resumed."""


class RemoteError(R2D1Error):
    """A store or catalog refused or failed.

    ``transient`` says that trying again may help; ``ambiguous`` that the request may have
    taken effect although no good answer came back; ``retry_after`` is the server's wish in seconds.
    """

    transient = False
    ambiguous = False

    def __init__(
        self,
        operation: str,
        subject: str,
        *,
        reason: str = "",
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(operation, subject)
        self.operation = operation
        self.subject = subject
        self.reason = reason
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.hint = hint
        self.attempts = 1

    def __str__(self) -> str:
        said = " ".join(str(part) for part in (self.status, self.code) if part is not None)
        text = f"{self.operation} {self.subject}: "
        text += " - ".join(part for part in (said, self.reason) if part) or type(self).__name__
        details = [f"{self.attempts} attempts"] if self.attempts > 1 else []
        details += [f"request {self.request_id}"] if self.request_id else []
        text += f" ({', '.join(details)})" if details else ""
        return f"{text}. {self.hint}" if self.hint else text


class RemoteUnavailable(RemoteError):
    """The server did not answer, or answered that it cannot now (5xx, sockets, time-outs).

    ``etag`` is that of the object whose body was cut short, where one was being read.
    """

    transient = True
    ambiguous = True
    etag: str | None = None


class NotSent(RemoteUnavailable):
    """The request certainly had no effect: the connection could not be made."""

    ambiguous = False


class Throttled(RemoteUnavailable):
    """The server asks for fewer requests (429, SlowDown); the request had no effect."""

    ambiguous = False


class BodyRefused(RemoteError):
    """The server says the body that arrived is not the body announced; it had no effect and may be sent again."""

    transient = True


class AccessRefused(RemoteError):
    """Credentials unknown, wrong, expired or not permitted (401, 403)."""


class BucketNotFound(RemoteError):
    """The bucket does not exist behind this endpoint."""


class ObjectNotFound(RemoteError):
    """No object under this key."""


class UploadNotFound(RemoteError):
    """The multipart upload is unknown: finished, aborted or never begun."""


class PreconditionFailed(RemoteError):
    """The condition of a conditional request did not hold (412)."""


class RangeRefused(RemoteError):
    """The requested range lies outside the object (416)."""


class NotSupported(RemoteError):
    """The store does not implement this request (501)."""


class CatalogError(RemoteError):
    """D1 refused a statement (SQL, limits); repeating it unchanged cannot help."""
