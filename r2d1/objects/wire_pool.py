"""Connections to one endpoint, kept between requests: at most as many as there are requests under way at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import nullcontext

from r2d1.objects.wire_connect import Address, Addresses, Endpoint, connect
from r2d1.objects.wire_exchange import Heard, Job, converse
from r2d1.objects.wire_link import Link
from r2d1.tasks import Halt

#: Seconds an idle connection is kept: short of what servers and middle boxes usually allow.
_KEEPALIVE_S = 15.0


class Pool:
    """The connections to ``endpoint``. The caller bounds how many requests are under way."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._addresses = Addresses(endpoint)
        self._kept = _Kept()

    async def addresses(self) -> tuple[Address, ...]:
        """Where to connect, for ``exchange``. Raises ``NotConnected`` when the name does not resolve."""
        return await self._addresses.get()

    def exchange(
        self, halt: Halt, job: Job, addresses: tuple[Address, ...], turn: threading.Lock | None = None
    ) -> Heard:
        """One request over a kept connection or a new one. Blocks; ``halt`` cuts the connection.

        With a ``turn`` the request is made by one thread at a time of those that share it, but not waited for.
        """
        link = self._kept.take()
        if link is None:
            link, address = connect(self.endpoint, addresses, halt)
            self._addresses.prefer(address)
        try:
            with halt.calling(link.cut), turn or nullcontext():
                link.base.begin(turn)
                heard = converse(link, job)
        except BaseException:
            link.close()
            raise
        if heard.is_complete and not halt.called:
            self._kept.give(link)
        else:
            link.close()
        return heard

    def close(self) -> None:
        """Close what is idle; connections in use close when their requests end."""
        self._kept.close()


class _Kept:
    """Connections that wait for the next request, the latest used first."""

    def __init__(self) -> None:
        self._links: deque[Link] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Link | None:
        while True:
            with self._lock:
                if not self._links:
                    return None
                link = self._links.pop()
            if time.monotonic() - link.kept_at < _KEEPALIVE_S and link.is_fresh():
                return link
            link.close()

    def give(self, link: Link) -> None:
        link.kept_at = time.monotonic()
        old: list[Link] = []
        with self._lock:
            if self._closed:
                old.append(link)
            else:
                self._links.append(link)
            while self._links and link.kept_at - self._links[0].kept_at > _KEEPALIVE_S:
                old.append(self._links.popleft())
        for each in old:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links, self._links = self._links, deque()
        for link in links:
            link.close()
