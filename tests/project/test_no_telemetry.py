"""Nothing is sent unless a user names the receiver: the table of docs/trust.md is complete."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

CLIENTS = {"aiohttp", "ftplib", "http", "httpx", "requests", "smtplib", "socket", "urllib3", "uvicorn", "websockets"}
SENDERS = {"opentelemetry", "posthog", "segment", "sentry_sdk", "statsd", "trackio", "datadog"}
MAY_CONNECT = {
    "agents/connections.py",  # `agentrl serve`, agents.Endpoint and env.Agents: the server
    "agents/routes.py",
    "agents/upstream.py",  # `--upstream`
    "cli/serve.py",
    "engine/http_pool.py",  # engine.VllmServer and engine.teacher_server
    "engine/teacher_server.py",
    "engine/vllm_api.py",
    "engine/vllm_server.py",
    "env/browser.py",  # env.MiniWoB, to the driver of a browser on this machine
    "env/runtime/process_worker.py",  # a pair of sockets between a process and its child
}


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports, anywhere in it; `urllib.request` counts as `http`."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        else:
            continue
        packages |= {"http" if name.startswith("urllib.request") else name.partition(".")[0] for name in names}
    return packages


def test_only_known_files_can_connect(root: Path) -> None:
    package = root / "python" / "agentrl_core"
    by_file = {path.relative_to(package).as_posix(): imported(path) for path in package.rglob("*.py")}
    assert len(by_file) > 300
    assert {name for name, packages in by_file.items() if packages & CLIENTS} == MAY_CONNECT
    assert not {name for name, packages in by_file.items() if packages & SENDERS}


PROGRAM = """
import importlib, sys
refused = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")
events = []

def watch(event, arguments):
    if event in refused:
        events.append((event, arguments[-1]))
        raise PermissionError(event)

sys.addaudithook(watch)
try:
    import socket
    socket.create_connection(("127.0.0.1", 9))
except PermissionError:
    assert events.pop()[0] in refused, "the hook hears of connections"

from public_names import public_names
for module in public_names():
    importlib.import_module(module)
import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start
world = env.ReasoningGym(["lcm"], tools=[env.Calculator()], seed=0)
policy, tokenizer = warm_start.warm_start(world, seed=0, steps=2)
generate = engine.Transformers(policy, tokenizer)
with arl.Store.open(sys.argv[1]) as store:
    collector = arl.Collector(generate, world, recipes.GRPO, store=store, sampling=engine.Sampling(max_tokens=4))
    batch = recipes.GRPO.credit(collector(tasks=2, group_size=2))
    updates = recipes.GRPO.updates(batch)
    for update in updates:
        for pack in update.pack(max_tokens=4096):
            update.loss(pack.run(policy), pack).backward()
    generate.update_weights(policy, version=1)
    collector.end_iteration(batch, updates.metrics)
    assert store.iteration == 1
    collector.close()
from agentrl_core import view
with arl.Store.open(sys.argv[1], read_only=True) as store:
    assert "grpo" in view.Page.of(store).html
assert not events, events
print("no connection")
"""


def test_a_run_opens_no_connection(root: Path, tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        env={"PYTHONPATH": str(root / "tests/support"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith("no connection\n")
