"""Ports for servers that tests start as processes."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port without a listener; the system does not assign it before a server listens on it.

    It lies outside the range that the system assigns to listeners without a port and to clients. Inside that range, a
    client that retries a port without a listener could even connect to itself.
    """
    lowest, highest = map(int, _RANGE.read_text(encoding="ascii").split()) if _RANGE.exists() else (32_768, 60_999)
    ports = [*range(_FIRST, lowest), *range(max(_FIRST, highest + 1), 1 << 16)]
    while True:
        port = random.SystemRandom().choice(ports)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
