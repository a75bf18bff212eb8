"""One request through aioboto3 while it is under way, and the body of its answer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from r2d1.errors import RemoteError
from r2d1.objects import r2_shapes as shapes

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(slots=True)
class Call:
    """A request under way."""

    operation: str
    subject: str
    client: Any
    bucket: str
    scope: anyio.CancelScope
    idle_s: float

    async def send(self, **params: Any) -> dict[str, Any]:
        method = getattr(self.client, _CAPITAL.sub("_", self.operation).lower())
        answer: dict[str, Any] = await method(Bucket=self.bucket, **params)
        try:
            shapes.require_s3(self.operation, self.subject, answer)
        except RemoteError:
            if (body := answer.get("Body")) is not None:
                body.close()
            raise
        return answer

    def moved(self) -> None:
        """Bytes moved: the idle time begins anew."""
        self.scope.deadline = anyio.current_time() + self.idle_s


@asynccontextmanager
async def reading(answer: dict[str, Any]) -> AsyncIterator[Any]:
    """The body of an answer; its connection is kept for the next request only when all was read."""
    body = answer["Body"]
    try:
        yield body
    except BaseException:
        body.close()
        raise
    body.release()
