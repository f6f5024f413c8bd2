"""A process that records to a store: python serving.py FOLDER PORT. Every answer is another one."""

from __future__ import annotations

import sys
import uuid

import uvicorn
from tool_agents import endpoint

from agentrl_core import Store

if __name__ == "__main__":
    folder, port = sys.argv[1], int(sys.argv[2])
    served = endpoint(lambda _: uuid.uuid4().hex[:8], store=Store.open(folder))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    uvicorn.run(served.app, host="127.0.0.1", port=port, log_level="critical")
