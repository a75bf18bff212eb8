"""Many small bodies over the data plane: one wait of the event loop for a whole row of requests.

A request of a few kilobytes costs less than waking a worker thread for it and the loop afterwards.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from contextlib import suppress

import anyio

from r2d1.errors import RemoteError
from r2d1.objects import PLAIN, BodyCheck, ByteRange, BytesSink, SmallGet, SmallPut
from r2d1.objects import r2_shapes as shapes
from r2d1.objects.pace import Pace
from r2d1.objects.r2_checks import CheckSupport
from r2d1.objects.wire import Ask, Request, Wire


class Several:
    """``put_several`` and ``get_several`` of ``ObjectStore``."""

    def __init__(self, wire: Wire, pace: Pace | None) -> None:
        self._wire = wire
        self._pace = pace

    async def put(
        self,
        puts: Sequence[SmallPut],
        etags: MutableSequence[str],
        checks: CheckSupport,
        limiter: anyio.CapacityLimiter,
    ) -> None:
        """Add the ETag of each object to ``etags`` once it is written. Raises ``RemoteError`` where it ends early.

        It ends without an error before a check of which is not known that the store takes it.
        """

        def work(ask: Ask) -> None:
            for one in puts:
                check = one.check()
                if _is_doubtful(check) and not checks.is_proven("PutObject"):
                    return
                source = self._pace.of_source(one.source) if self._pace else one.source
                params = {"Key": one.key, **shapes.attribute_params(PLAIN), **shapes.check_params(check)}
                request = Request("PutObject", params, source)
                etags.append(shapes.etag(request.read(ask(request))))

        await self._wire.together(work, limiter)

    async def get(self, gets: Sequence[SmallGet], limiter: anyio.CapacityLimiter) -> int:
        """How many objects came and were right."""
        done = 0

        def work(ask: Ask) -> None:
            nonlocal done
            for one in gets:
                if not one.take(self._fetched(one, ask)):
                    return
                done += 1

        with suppress(RemoteError):  # the caller asks for the rest by itself
            await self._wire.together(work, limiter)
        return done

    def _fetched(self, one: SmallGet, ask: Ask) -> bytes:
        landing = shapes.Landing(one.key, ByteRange(0, one.size), one.if_match)
        sink = BytesSink()
        params = {"Key": one.key, "Range": f"bytes=0-{one.size - 1}"}
        params |= {"IfMatch": f'"{one.if_match}"'} if one.if_match is not None else {}
        paced = self._pace.of_sink(sink) if self._pace else sink
        heard = ask(Request("GetObject", params, sink=paced, placing=landing.place))
        shapes.require_all(one.key, heard.came, one.size)
        return bytes(sink.data)


def _is_doubtful(check: BodyCheck | None) -> bool:
    """Some stores refuse checksums in headers; ``Content-MD5`` they all know."""
    return check is not None and check.algorithm == "crc64nvme"
