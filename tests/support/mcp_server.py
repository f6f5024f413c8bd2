"""A real server of the Model Context Protocol, made with its SDK; the tests of `env.MCP` start it."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")
noted: list[str] = []


@server.tool()
def add(first: int, second: int = 1) -> str:
    """Add two integers."""
    return str(first + second)


@server.tool()
def divide(first: float, second: float) -> float:
    """Divide."""
    return first / second


@server.tool()
def note(text: str) -> str:
    """Keep a text; the reply says how many there are."""
    noted.append(text)
    return f"{len(noted)} kept by {os.environ.get('NOTEBOOK', 'nobody')}"


@server.tool()
def wait(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def leave() -> str:
    """End the server."""
    sys.stderr.write("the server leaves\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def long() -> str:
    """Say much."""
    return "x" * 50_000


if __name__ == "__main__":
    server.run("stdio")
