"""A vLLM server of the CPU build, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port

_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
# A timeout long enough to mean a hang on a slow machine.
_SECONDS = 600.0


class Running:
    """A running server that answers requests."""

    def __init__(self, folder: Path, log: Path, port: int, arguments: tuple[str, ...]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
        command += ["--skip-tokenizer-init", "--max-model-len", "128", "--block-size", "32"]
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "128", *arguments]
        with log.open("wb") as log_file:
            self.process = subprocess.Popen(
                command, env=os.environ | _SETTINGS, stdout=log_file, stderr=log_file, start_new_session=True
            )

    def ready(self) -> bool:
        """Return whether it answers; raise an error if it ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        """Kill it and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(folder: Path, log: Path, *arguments: str, port: int | None = None) -> Iterator[Running]:
    """Run a server of the model in a folder until the end of the block."""
    running = Running(folder, log, port or free_port(), arguments)
    try:
        end = time.monotonic() + _SECONDS
        while not running.ready():
            if time.monotonic() > end:
                raise TimeoutError(f"no server after {_SECONDS} s:\n{log.read_text()[-4000:]}")
            time.sleep(0.2)
        yield running
    finally:
        running.stop()


ARGUMENTS = (
    "--logprobs-mode",
    "processed_logprobs",
    "--enable-scale-out",
    "--enable-prompt-tokens-details",
    "--worker-extension-cls",
    "agentrl_core.engine.vllm_worker.VllmWorker",
)
"""The arguments of a server for `engine.VllmServer`."""
