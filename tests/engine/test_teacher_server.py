"""A teacher behind HTTP with the format of vLLM's completions, against the model itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from riddles import TOKENIZER
from torch import nn

from agentrl_core import Batch, Forest, annotate
from agentrl_core.engine.teacher_server import TeacherServer
from agentrl_core.exceptions import InvalidInputError

K = 4


class Answers(BaseHTTPRequestHandler):
    """The format of vLLM's `/v1/models`, `/tokenize` and `/v1/completions` with `prompt_logprobs`."""

    model: nn.Module
    asked: list[list[int]]
    failures = 0
    shift = 0
    unanswered_number: int | None = None
    """The number of the sequence that is not answered before `let_go`."""
    arrived: threading.Event
    let_go: threading.Event

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "teacher"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            ids = TOKENIZER(body["prompt"], add_special_tokens=False)["input_ids"]
            self._reply({"tokens": [each + self.shift for each in ids]})
            return
        if type(self).failures:
            type(self).failures -= 1
            self._reply({"error": "busy"}, 503)
            return
        tokens, count = body["prompt"], body["prompt_logprobs"]
        self.asked.append(tokens)
        if len(self.asked) == self.unanswered_number:
            self.arrived.set()
            self.let_go.wait(60.0)
            return
        with torch.no_grad():
            logprobs = self.model(input_ids=torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        entries: list[dict[str, Any] | None] = [None]
        for row, token in zip(logprobs[:-1], tokens[1:], strict=True):
            top = row.topk(count)
            entry = {str(token): {"logprob": float(row[token]), "rank": int((row >= row[token]).sum())}}
            for rank, (value, place) in enumerate(zip(top.values, top.indices, strict=True), 1):
                entry[str(int(place))] = {"logprob": float(value), "rank": rank}
            entries.append(entry)
        self._reply({"choices": [{"prompt_logprobs": entries}]})

    def _reply(self, body: object, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Answers]]]:
    model = tiny_model("qwen3", vocab_size=len(TOKENIZER)).eval()
    attributes = {"model": model, "asked": [], "arrived": threading.Event(), "let_go": threading.Event()}
    handler = type("Handler", (Answers,), attributes)
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", handler
    http.shutdown()
    thread.join()
    http.server_close()


def rollouts(temperature: float = 1.0) -> Batch:
    """Two branches that continue one action with different tokens, and another group."""
    forest = Forest()
    forest.add_group(0, "task")
    one = forest.start(0, member=0)
    forest.append(one, [1, 2, 3], kind="prompt")
    node = forest.append(one, [4, 5, 6], kind="action", logprobs=[-1.0, -1.0, -1.0], temperature=temperature)
    two = forest.fork(one, node=node, end=1)
    forest.append(two, [7, 8], kind="action", logprobs=[-1.0, -1.0], temperature=temperature)
    forest.append(one, [20, 21], kind="observation")
    forest.append(one, [9], kind="action", logprobs=[-1.0], temperature=temperature)
    for trajectory in (one, two):
        forest.finish(trajectory, reward=0.0)
    forest.add_group(1, "other")
    last = forest.start(1, member=0)
    forest.append(last, [11], kind="prompt")
    forest.append(last, [12, 13], kind="action", logprobs=[-1.0, -1.0], temperature=temperature)
    forest.finish(last, reward=0.0)
    return forest.freeze()


@pytest.mark.parametrize("prompts", [None, [[30, 31], [30, 31], [32, 33, 34]]])
def test_a_server_answers_as_the_model_does(server: tuple[str, type[Answers]], prompts: list[list[int]] | None) -> None:
    url, handler = server
    batch = rollouts()
    teacher = TeacherServer(url, top_k=K, tokenizer=TOKENIZER, concurrency=2)
    result = annotate(batch, "teacher_logprob", teacher, top_k=K, prompts=prompts)
    expected = annotate(batch, "teacher_logprob", handler.model, top_k=K, prompts=prompts)
    np.testing.assert_array_equal(
        result.column("teacher_top_ids", "token"), expected.column("teacher_top_ids", "token")
    )
    for name in ("teacher_logprob", "teacher_top_logprobs"):
        np.testing.assert_allclose(result.column(name, "token"), expected.column(name, "token"), atol=1e-5)
    alone = annotate(batch, "teacher_logprob", TeacherServer(url), prompts=prompts)
    np.testing.assert_allclose(
        alone.column("teacher_logprob", "token"), expected.column("teacher_logprob", "token"), atol=1e-5
    )


def test_a_stopped_run_requests_only_the_rest(server: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = server
    batch, folder = rollouts(), tmp_path / "answers"
    first = np.array([True, False, False])
    annotate(batch, "teacher_logprob", TeacherServer(url, top_k=K, folder=folder), top_k=K, draws=first)
    count = len(handler.asked)
    teacher = TeacherServer(url, top_k=K, folder=folder)
    result = annotate(batch, "teacher_logprob", teacher, top_k=K, max_tokens=9)
    after = len(handler.asked)
    again = annotate(batch, "teacher_logprob", TeacherServer(url, top_k=K, folder=folder), top_k=K, max_tokens=9)
    assert count >= 1
    assert len(handler.asked) == after
    assert not list(folder.glob("*.part"))
    for name in ("teacher_logprob", "teacher_top_ids", "teacher_top_logprobs"):
        np.testing.assert_array_equal(result.column(name, "token"), again.column(name, "token"))


def test_a_run_after_a_kill_repeats_only_unanswered_requests(server: tuple[str, type[Answers]], tmp_path: Path) -> None:
    url, handler = server
    handler.unanswered_number = 2
    program = (
        "from agentrl_core import annotate\n"
        "from agentrl_core.engine.teacher_server import TeacherServer\n"
        "from test_teacher_server import K, rollouts\n"
        f"teacher = TeacherServer({url!r}, top_k=K, folder={str(tmp_path)!r}, concurrency=1)\n"
        "annotate(rollouts(), 'teacher_logprob', teacher, top_k=K)\n"
    )
    path = [str(Path(__file__).parent), *sys.path]
    run = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
    try:
        assert handler.arrived.wait(300.0)
    finally:
        run.kill()
        run.wait()
        handler.let_go.set()
    answered, unanswered = (tuple(tokens) for tokens in handler.asked)
    teacher = TeacherServer(url, top_k=K, folder=tmp_path, concurrency=1)
    result = annotate(rollouts(), "teacher_logprob", teacher, top_k=K)
    times = Counter(map(tuple, handler.asked))
    assert len(times) > 2
    assert times == {**dict.fromkeys(times, 1), unanswered: 2}
    assert times[answered] == 1
    expected = annotate(rollouts(), "teacher_logprob", handler.model, top_k=K)
    np.testing.assert_allclose(
        result.column("teacher_logprob", "token"), expected.column("teacher_logprob", "token"), atol=1e-5
    )


def test_a_request_to_a_busy_server_is_retried(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    handler.failures = 1
    result = annotate(rollouts(), "teacher_logprob", TeacherServer(url, concurrency=1))
    assert np.isfinite(result.column("teacher_logprob", "token")).all()


def test_another_tokenizer_is_refused(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    handler.shift = 1
    with pytest.raises(InvalidInputError, match="tokenises a text differently"):
        annotate(rollouts(), "teacher_logprob", TeacherServer(url, tokenizer=TOKENIZER))
    assert handler.asked == []


def test_another_temperature_is_refused(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    with pytest.raises(InvalidInputError, match=r"sampled at temperature 0\.5"):
        annotate(rollouts(0.5), "teacher_logprob", TeacherServer(url))
    assert handler.asked == []


def test_invalid_options_are_refused(server: tuple[str, type[Answers]]) -> None:
    url, _ = server
    with pytest.raises(InvalidInputError, match="top_k is 0"):
        TeacherServer(url, top_k=0)
    with pytest.raises(InvalidInputError, match="concurrency is True"):
        TeacherServer(url, concurrency=True)
    with pytest.raises(InvalidInputError, match="top_k=2"):
        annotate(rollouts(), "teacher_logprob", TeacherServer(url, top_k=K), top_k=2)
