"""`agentrl serve`: an endpoint before a model's server that records the requests of agents of any framework."""

from __future__ import annotations

import argparse
import sys


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `--upstream URL --store RUN --host HOST --port N ...`."""
    command.description = (
        "Run a proxy between agents and a vLLM server that records the tokens of every response. Set an agent's base "
        "URL to http://HOST:PORT/s/NAME/v1 (for clients of Anthropic without the /v1), where NAME is the session's. "
        "Close "
        "a session with its reward by POST /sessions/NAME/close, and get the batch of closed sessions by POST "
        "/iterations."
    )
    command.epilog = (
        "examples:\n"
        "  vllm serve MODEL --logprobs-mode processed_logprobs\n"
        "  agentrl serve --upstream http://127.0.0.1:8000 --store runs/agents"
    )
    command.add_argument("--upstream", metavar="URL", required=True, help="the server that generates")
    command.add_argument("--model", metavar="NAME", help="its model (default: its first model)")
    command.add_argument("--store", metavar="RUN", help="directory of the run (default: nothing is stored)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    command.add_argument("--port", type=int, default=8800, help="port to listen on (8800)")
    command.add_argument("--key-file", metavar="FILE", help="file with the key that agents must send")


def run(upstream: str, model: str | None, store: str | None, host: str, port: int, key_file: str | None) -> int:
    """Serve the recording endpoint until interrupted."""
    from contextlib import nullcontext
    from pathlib import Path

    import uvicorn

    from agentrl_core.agents import Endpoint, VllmUpstream
    from agentrl_core.agents.connections import OPTIONS
    from agentrl_core.data.store import Store
    from agentrl_core.exceptions import InvalidInputError

    try:
        key = None if key_file is None else Path(key_file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"--key-file {key_file}: the file cannot be read ({error}); give a text file") from None
    if key is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidInputError(
            f"--host {host}: other machines can reach the endpoint; give a --key-file, or omit --host"
        )
    with nullcontext() if store is None else Store.open(store) as run_:
        endpoint = Endpoint(VllmUpstream(upstream, model=model), store=run_, api_key=key)
        print(f"recording at http://{host}:{port}, upstream {upstream}", file=sys.stderr)
        uvicorn.run(endpoint.app, host=host, port=port, **OPTIONS)
    return 0
