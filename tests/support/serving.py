"""A process that records to a store: python serving.py FOLDER LISTENER. Every answer is different.

LISTENER is the inherited descriptor of a listening socket. A client that connects while no process runs waits for the
next one.
"""

from __future__ import annotations

import socket
import sys
import uuid

import uvicorn
from tool_agents import endpoint

from agentrl_core import Store

if __name__ == "__main__":
    folder, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    served = endpoint(lambda _: uuid.uuid4().hex[:8], store=Store.open(folder))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(served.app, log_level="critical")).run(sockets=[listener])
