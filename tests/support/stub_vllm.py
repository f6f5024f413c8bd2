"""A small server with the routes of vLLM that `VllmServer` uses; it can be stopped, restarted, and made to fail.

Use it for outages only. The behaviour of vLLM itself is tested with real servers, which take minutes to start.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ports import free_port

WORKER = "agentrl_core.engine.vllm_worker.VllmWorker"


class StubVllm:
    """The server, on a port that it keeps.

    Attributes:
        version: version of its weights; "default" after a start.
        sampled: version of each segment, without probes.
        loaded: folders of the weights that it loaded.
        failing: whether it answers 500 to requests for tokens.
        experts: a function of all tokens of a segment that returns the reported experts; None: none are reported.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.sampled: list[str] = []
        self.loaded: list[str] = []
        self.failing = False
        self.experts: Callable[[list[int]], str] | None = None
        self.start()

    def start(self) -> None:
        self.version = "default"
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Return status and content of an answer."""
        if path == "/v1/models":
            return 200, {"data": [{"max_model_len": 128}]}
        if path == "/inference/v1/generate":
            if self.failing:
                return 500, {"error": {"message": "out of memory"}}
            return 200, self._segment(body)
        if path.startswith("/server_info"):
            return 200, {"vllm_config": {"parallel_config": {"worker_extension_cls": WORKER}}}
        if path == "/collective_rpc":
            self.loaded.append(body["args"][0])
            return 200, {"results": [None]}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        return 200, {}

    def _segment(self, body: Any) -> Any:
        params = body["sampling_params"]
        count = params["max_tokens"]
        if params.get("top_k") == 1:  # the probe
            content = [{"logprob": 0.0, "top_logprobs": [{"token_id": 3, "logprob": 0.0}]}]
            tokens = [3]
        else:
            self.sampled.append(self.version)
            tokens = [(params["seed"] + place) % 7 + 1 for place in range(count)]
            content = [{"logprob": -0.5, "top_logprobs": [{"token_id": token, "logprob": -0.5}]} for token in tokens]
        choice: dict[str, Any] = {
            "finish_reason": "length",
            "token_ids": tokens,
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.version}],
        }
        if self.experts is not None:
            choice["routed_experts"] = self.experts(body["token_ids"] + tokens)
        return {"choices": [choice], "usage": {"prompt_tokens_details": None}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def _reply(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, content = stub.answer(self.path, body)
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = _reply  # noqa: N815 -- the names of the base class

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        return Handler
