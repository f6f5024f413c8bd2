"""Deduplication of retried requests: one answer is generated for a request and its retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import ChatResponse

IsGone = Callable[[], Awaitable[bool]]
"""Returns whether the client has disconnected."""


@dataclass
class _PendingRequest:
    """A request that is being answered."""

    answer: asyncio.Future[ChatResponse]
    is_gone: IsGone


class RequestDeduplicator:
    """Answers a repeated request with the earlier answer instead of a new sample.

    A request is repeated if its client marks it so, or if it equals one whose client disconnected before the answer.

    Args:
        before: returns the last answer to a request, given its digest and the request; None: there is none.
    """

    def __init__(self, before: Callable[[str, Json], ChatResponse | None]) -> None:
        self._before = before
        self._pending: dict[str, _PendingRequest] = {}
        """Requests that are being answered, by their digests."""
        self._undelivered: set[str] = set()
        """Digests of requests whose client had disconnected when they were answered."""

    async def once(
        self, key: str, request: Json, generate: Callable[[], Awaitable[Any]], is_gone: IsGone, *, retry: bool
    ) -> ChatResponse:
        """Return the answer to a request, which is generated once even if the client retries the request.

        Args:
            key: digest of the request, as it came.
            request: the request.
            generate: generates the answer.
            is_gone: returns whether the client has disconnected. If it has, the next equal request gets the same
                answer, since it is likely from the same client.
            retry: whether the client marks the request as repeated.
        """
        known = self._pending.get(key)
        if known is not None and (retry or await known.is_gone()):
            known.is_gone = is_gone
            pending = known
        elif (
            known is None and (retry or key in self._undelivered) and (answer := self._before(key, request)) is not None
        ):
            self._undelivered.discard(key)
            return answer
        else:
            pending = self._pending[key] = _PendingRequest(asyncio.ensure_future(generate()), is_gone)
        try:
            # Shielded, so that one cancelled waiter does not cancel the answer for the others.
            answer = await asyncio.shield(pending.answer)
        finally:
            if pending.answer.done() and self._pending.get(key) is pending:
                del self._pending[key]
        if await pending.is_gone():
            self._undelivered.add(key)
        return answer
