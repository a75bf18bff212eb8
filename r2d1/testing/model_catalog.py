"""The catalog without a wire: D1's rules in process, for a simulation that has neither sockets nor threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.lowlevel

from r2d1.catalog import TableCatalog
from r2d1.d1_wire import Param, Reply, Statement, encode, rows_of
from r2d1.errors import CatalogError
from r2d1.testing.d1_rules import D1Rules


class ModelDatabase:
    """What the D1 client is, minus HTTP, pace and retries: one call is one attempt, settled at once.

    Bodies and answers are the client's and the rules' own. Several of these over one ``D1Rules`` share its rows.
    """

    def __init__(self, rules: D1Rules) -> None:
        self._rules = rules
        self._path = f"/client/v4/accounts/{rules.account_id}/d1/database/{rules.database_id}/query"

    @property
    def where(self) -> str:
        return f"D1 {self._rules.database_id}"

    async def query(self, sql: str, params: Sequence[Param] = (), *, safe: bool = False) -> list[dict[str, Any]]:
        (rows,) = await self.batch([Statement(sql, tuple(params))], safe=safe)
        return rows

    async def batch(self, statements: Sequence[Statement], *, safe: bool = False) -> list[list[dict[str, Any]]]:
        await anyio.lowlevel.checkpoint()
        operation = "D1 batch" if len(statements) > 1 else "D1 query"
        try:
            body = encode(statements)
        except ValueError as exc:
            raise CatalogError(operation, self.where, reason=str(exc)) from exc
        answer = self._rules.answer("POST", self._path, authorization=f"Bearer {self._rules.api_token}", body=body)
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.body)
        return rows_of(reply, operation=operation, where=self.where, now=0.0)

    async def aclose(self) -> None:
        """The rules belong to whoever made them."""


class ModelCatalog(TableCatalog):
    """The documented table over ``D1Rules``, held to the catalogs' contract suite like the real ones."""

    def __init__(self, rules: D1Rules) -> None:
        super().__init__(ModelDatabase(rules))
