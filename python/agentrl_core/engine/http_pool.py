"""Connections to a server, kept for the next request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

# Connections that are idle for so long are closed, before the servers do it after five seconds.
_IDLE_SECONDS = 2.0
_CONNECT_SECONDS = 10.0


class HttpPool:
    """Connections to one server, each a client of its own, used by one request at a time.

    A pool of httpx looks at each of its connections for every request that begins or ends, which takes time with the
    square of the requests that are under way. Here the one that became free last is taken.

    Args:
        url: of the server.
        seconds: an answer may take.
    """

    def __init__(self, url: str, seconds: float) -> None:
        import httpx

        self.url = url.rstrip("/")
        self._timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        self._limits = httpx.Limits(keepalive_expiry=_IDLE_SECONDS)
        self._trusted = httpx.create_ssl_context()
        """Made once: it reads all certificates of the machine."""
        self._free: list[httpx.AsyncClient] = []

    async def request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """Return the server's response.

        Raises:
            httpx.HTTPError: nothing.
        """
        client = self._free.pop() if self._free else self._made()
        try:
            return await client.request(method, self.url + path, json=body)
        finally:
            self._free.append(client)

    async def close(self) -> None:
        """Close them."""
        while self._free:
            await self._free.pop().aclose()

    def _made(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(verify=self._trusted, limits=self._limits, timeout=self._timeout)
