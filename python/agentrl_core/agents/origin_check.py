"""Refuse requests from web pages, for endpoints without a key.

Any page that is open in a browser of this machine can send requests to its loopback addresses. But a page cannot choose
its `Origin`; after DNS rebinding, its `Host` is its own name; and without a preflight request it cannot send JSON.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from agentrl_core.agents.routes import RefusedRequest


def check_origin(request: Request) -> None:
    """Refuse a request that may come from a web page of another site.

    Raises:
        RefusedRequest: the request's `Origin` differs from its `Host`, its `Host` is not a loopback name although it
            arrived at a loopback address, or its `Content-Type` is not JSON.
    """
    host, origin = request.headers.get("host"), request.headers.get("origin")
    if origin is not None and _place_of(origin) != host:
        raise _refused("Origin", origin)
    server = request.scope.get("server")
    if host is not None and server is not None and _is_loopback(server[0]) and not _is_loopback(_name_of(host)):
        raise _refused("Host", host)
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RefusedRequest(
            415, "invalid_request_error", f"Content-Type is {kind!r:.60}; send JSON as application/json"
        )


def _refused(header: str, value: str) -> RefusedRequest:
    return RefusedRequest(
        403,
        "permission_error",
        f"{header} is {value!r:.100}, as sent by a web page of another site; call 127.0.0.1 or localhost from a "
        "program, or start the endpoint with a key",
    )


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as a bracket that is not closed
        return None


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
