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
        "agents of other programs need Starlette and uvicorn: pip install 'agentrl-core[agents]'"
    ) from error

HEAD_SECONDS = 5.0
"""Until the headers of a request have to be whole, from the connection or from their first byte."""

SILENT_SECONDS = 5.0
"""Longest pause inside a body."""

BODY_SECONDS = 60.0
"""Until a body has to be whole."""

IDLE_SECONDS = 5
"""How long a connection is kept between two requests."""

HEAD_BYTES = 64 << 10
"""Bytes of the headers of a request."""

HEADERS = 128
"""Headers of a request."""

MOST_CONNECTIONS = 4096
"""Connections at the same time; fewer, if the process may open fewer than twice as many files."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class Connection(H11Protocol):
    """Closes itself if the headers of a request are not whole in time, or if there are too many of its kind."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol.connection_made`."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.write(_FULL)
            transport.close()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol.data_received`."""
        super().data_received(data)
        # A body that nobody reads any more is waited for as long as a head.
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr] # None at first
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol.connection_lost`."""
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
    """Count the connections that this process can hold, each with one of its own to the upstream."""
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
