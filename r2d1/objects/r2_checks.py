"""Whether a store takes ``x-amz-checksum-*`` headers: learnt from its answers, told once, worked around.

R2 and AWS verify them. Others answer 501, 400, 401 or 500 to any such header, so a refusal is tried once more
without: when that succeeds, the header was the cause, and the store is spared it from then on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from r2d1.errors import AccessRefused, NotSupported, RemoteError, RemoteUnavailable
from r2d1.events import Teller

T = TypeVar("T")
Headers = Mapping[str, str]

#: A 500 may be a passing trouble: it takes two such pairs, where one of the other answers is enough.
_ENOUGH = 2


class CheckSupport:
    """What is known of one store."""

    def __init__(self, tell: Teller) -> None:
        self._tell = tell
        self._proven: set[str] = set()
        self._doubt = 0
        self._refused = False

    def is_proven(self, operation: str) -> bool:
        """Whether the store has taken a check with this operation."""
        return operation in self._proven

    async def tried(
        self,
        operation: str,
        wanted: Headers,
        instead: Callable[[], Awaitable[Headers]],
        send: Callable[[Headers], Awaitable[T]],
        *,
        is_conditional: bool = False,
    ) -> tuple[T, Headers]:
        """Send with the check, or with what ``instead`` gives where it is refused; returns which it was.

        A condition and an unproven check do not travel together: when a 500 comes back to both, the request
        cannot be repeated to find out which was meant.
        """
        if self._refused or (is_conditional and operation not in self._proven):
            other = await instead()
            return await send(other), other
        try:
            answer = await send(wanted)
        except RemoteError as error:
            if not self._may_be_blamed(operation, error):
                raise
            other = await instead()
            answer = await send(other)
            self._learn(error)
            return answer, other
        self._proven.add(operation)
        return answer, wanted

    def _may_be_blamed(self, operation: str, error: RemoteError) -> bool:
        if operation in self._proven:
            return False
        if isinstance(error, RemoteUnavailable):
            return error.status == 500 and not self._proven
        is_plain = type(error) in (RemoteError, AccessRefused, NotSupported)
        return is_plain and error.status in (400, 401, 501)

    def _learn(self, error: RemoteError) -> None:
        self._doubt += 1 if error.status == 500 else _ENOUGH
        if self._doubt >= _ENOUGH:
            self._refused = True
            self._tell.notice(
                "warning",
                f"this store refuses x-amz-checksum headers (it answered {error.status}); "
                'bodies are sent with Content-MD5 instead. `upload_check="md5"` spares the attempt',
                once="checksums refused",
            )
