"""Servers that are down, die, or restart: no token is lost, duplicated, or sampled by other weights."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_vllm import StubVllm

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import EngineError

pytest.importorskip("httpx")
LOGGER = "agentrl_core.engine.vllm_server"


@pytest.fixture
def servers() -> Iterator[list[StubVllm]]:
    started = [StubVllm(), StubVllm()]
    yield started
    for each in started:
        each.stop()


def opened(servers: list[StubVllm], tokenizer: Any, **options: Any) -> engine.VllmServer:
    return engine.VllmServer([each.url for each in servers], tokenizer, entropies=False, **options)


def sample(generate: engine.VllmServer, count: int = 8, first: int = 0) -> list[Segment]:
    requests = [Request(np.array([5, 6], np.int32), first + seed, Sampling(max_tokens=3)) for seed in range(count)]
    segments = generate_all(generate, requests)
    for seed, segment in enumerate(segments, first):
        assert segment.tokens.tolist() == [(seed + place) % 7 + 1 for place in range(3)]
    return segments


def versions(segments: list[Segment]) -> set[int]:
    return {segment.policy_version for segment in segments}


def send(generate: engine.VllmServer, version: int) -> None:
    """Update the weights without a model, from their folder."""
    assert generate._folder is not None
    path = Path(generate._folder) / f"version-{version}"
    path.mkdir(parents=True)
    generate._wait(generate._replace(str(path), version))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_starts_if_any_server_answers(servers: list[StubVllm], tokenizer: Any, caplog: Any) -> None:
    servers[0].stop()
    with caplog.at_level(logging.WARNING, LOGGER):
        generate = opened(servers, tokenizer, patience=60.0)
        assert generate.context_tokens == 128
        assert len(sample(generate)) == 8
        assert not servers[0].sampled
        assert "does not answer" in caplog.text
        assert "retried for 60 seconds" in caplog.text
        servers[0].start()
        wait_for(lambda: "answers again, with version 0" in caplog.text)
    sample(generate, 16)
    assert servers[0].sampled
    generate.close()


def test_without_any_server_it_does_not_start(tokenizer: Any) -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9 does not answer"):
        engine.VllmServer(["http://127.0.0.1:9", "http://127.0.0.1:9"], tokenizer)


def test_requests_wait_for_the_last_server_to_come_back(servers: list[StubVllm], tokenizer: Any) -> None:
    generate = opened(servers, tokenizer, patience=60.0)
    for each in servers:
        each.stop()
    segments: list[Segment] = []
    thread = threading.Thread(target=lambda: segments.extend(sample(generate)))
    thread.start()
    wait_for(lambda: len(generate._returning) == 2)
    assert not segments
    for each in servers:
        each.start()
    thread.join(120)
    assert len(segments) == 8
    assert sum(len(each.sampled) for each in servers) == 8, "a segment was sampled twice"
    generate.close()


def test_a_restarted_server_gets_the_weights_before_it_is_used(
    servers: list[StubVllm], tokenizer: Any, tmp_path: Path
) -> None:
    generate = opened(servers, tokenizer, folder=tmp_path, patience=60.0)
    send(generate, 3)
    assert versions(sample(generate, 16)) == {3}
    servers[1].stop()
    servers[1].start()
    servers[1].sampled.clear()
    # It samples the version of its start at most until the first answer arrives, and that segment is not used.
    assert versions(sample(generate, 16)) == {3}
    wait_for(lambda: not generate._returning)
    assert servers[1].version == "3"
    assert servers[1].loaded == [str(tmp_path / "version-3")] * 2
    servers[0].stop()
    assert versions(sample(generate, 8)) == {3}
    servers[0].start()
    generate.close()


def test_requests_fail_when_the_servers_are_given_up(servers: list[StubVllm], tokenizer: Any, caplog: Any) -> None:
    generate = opened(servers, tokenizer, patience=1.5)
    for each in servers:
        each.stop()
    with caplog.at_level(logging.ERROR, LOGGER):
        with pytest.raises(EngineError, match="does not answer"):
            sample(generate)
        assert caplog.text.count("it is given up until update_weights reaches it") == 2
        with pytest.raises(EngineError, match="does not answer"):
            sample(generate)
        assert not generate._returning, "all requests have ended"
    for each in servers:
        each.start()
    assert len(sample(generate)) == 8, "they are not forgotten"
    generate.close()


def test_a_server_that_was_given_up_gets_the_weights_when_it_is_back(
    servers: list[StubVllm], tokenizer: Any, tmp_path: Path
) -> None:
    generate = opened(servers, tokenizer, folder=tmp_path, patience=1.0)
    send(generate, 3)
    for each in servers:
        each.stop()
    with pytest.raises(EngineError, match="does not answer"):
        sample(generate)
    for each in servers:
        each.start()
        each.sampled.clear()
    assert versions(sample(generate)) == {3}
    wait_for(lambda: not generate._returning)
    assert "3" in servers[0].sampled + servers[1].sampled
    generate.close()


def test_a_request_at_which_every_server_fails_ends(servers: list[StubVllm], tokenizer: Any) -> None:
    generate = opened(servers, tokenizer, patience=60.0)
    servers[0].failing = servers[1].failing = True
    probing = [each.answer for each in servers]

    def answering(number: int) -> Any:
        def answer(path: str, body: Any) -> tuple[int, Any]:
            if body and body.get("sampling_params", {}).get("top_k") == 1:
                return 200, servers[number]._segment(body)
            return probing[number](path, body)

        return answer

    for number, each in enumerate(servers):
        each.answer = answering(number)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="answers 500: out of memory"):
        sample(generate, 1)
    servers[0].failing = servers[1].failing = False
    assert len(sample(generate)) == 8
    generate.close()


def test_an_engine_without_a_folder_follows_the_trainer(
    servers: list[StubVllm], tokenizer: Any, tmp_path: Path
) -> None:
    trainer = opened(servers, tokenizer, folder=tmp_path)
    follower = opened(servers, tokenizer)
    assert versions(sample(follower)) == {0}
    send(trainer, 1)
    follower.refresh()
    assert follower.policy_version == 1
    assert versions(sample(follower)) == {1}
    send(trainer, 2)
    assert versions(sample(follower)) == {2}, "it does not need to be told"
    assert follower.policy_version == 2
    servers[0].version = "1"  # it missed the update: none of its segments is used
    assert versions(sample(follower, 16)) == {2}
    for each in servers:
        each.version = "1"
    with pytest.raises(EngineError, match=r"no server has weights of version 2 .*: 1"):
        sample(follower, 1)
    trainer.close()
    follower.close()
