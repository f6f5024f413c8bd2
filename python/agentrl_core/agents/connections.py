"""Connections of an endpoint: slow, idle and too many ones are closed."""

from __future__ import annotations

import asyncio
import resource
from typing import Any, Final

from agentrl_core.exceptions import MissingDependencyError

try:
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingDependencyError(
        "serving a model to other programs needs Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error

HEAD_SECONDS = 5.0
"""Time limit for the headers of a request, from the connection or from their first byte."""

SILENT_SECONDS = 5.0
"""Longest pause inside a body."""

BODY_SECONDS = 60.0
"""Time limit for a whole body."""

IDLE_SECONDS = 5
"""How long a connection is kept between two requests."""

HEAD_BYTES = 64 << 10
"""Most bytes of the headers of a request."""

HEADERS = 128
"""Most headers of a request."""

MOST_CONNECTIONS = 4096
"""Most connections at the same time; fewer if the process may open fewer than twice as many files."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class Connection(H11Protocol):
    """HTTP connection that closes if a request's headers arrive too slowly, or if too many connections are open."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or answer 503 and close it if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.write(_FULL)
            transport.close()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and start or stop the time limit for headers."""
        super().data_received(data)
        # The time limit for headers also applies to the rest of a body that is not read any more.
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr] # None at first
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit for headers."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def most_connections() -> int:
    """Return how many connections this process can hold, each with one more connection to the upstream."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(16, files // 2 - 64)) if files > 0 else MOST_CONNECTIONS


OPTIONS: Final[dict[str, Any]] = {
    "http": Connection,
    "ws": "none",
    "h11_max_incomplete_event_size": HEAD_BYTES,
    "timeout_keep_alive": IDLE_SECONDS,
    "log_level": "warning",
}
"""Options of uvicorn for an endpoint."""
