"""A pool of HTTP connections to one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

# Idle connections are closed after this time, since servers close them after five seconds.
_IDLE_SECONDS = 2.0
_CONNECT_SECONDS = 10.0


class HttpPool:
    """Pool of connections to one server; each is a separate client, used by one request at a time.

    The pool of httpx scans all its connections whenever a request begins or ends, so its time is quadratic in the
    number of concurrent requests. This pool takes the connection that became free last.

    Args:
        url: URL of the server.
        seconds: time limit for a response.
    """

    def __init__(self, url: str, seconds: float) -> None:
        import httpx

        self.url = url.rstrip("/")
        self._timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        self._limits = httpx.Limits(keepalive_expiry=_IDLE_SECONDS)
        self._trusted = httpx.create_ssl_context()
        """Created once, since it reads all certificates of the machine."""
        self._free: list[httpx.AsyncClient] = []

    async def request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """Send a request, and return the server's response.

        Raises:
            httpx.HTTPError: the server did not respond.
        """
        client = self._free.pop() if self._free else self._made()
        try:
            return await client.request(method, self.url + path, json=body)
        finally:
            self._free.append(client)

    async def close(self) -> None:
        """Close all free connections."""
        while self._free:
            await self._free.pop().aclose()

    def _made(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(verify=self._trusted, limits=self._limits, timeout=self._timeout)
