"""Segments with the experts of each token, stored with the tokens through turns, forks, caches and rewrites."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from number_world import Numbers, SumWorld
from stub_vllm import StubVllm
from tiny_moe import VOCABULARY, chosen_experts, tiny_moe

import agentrl_core as arl
from agentrl_core import engine, recipes, rollout
from agentrl_core.collect.rollout_log import read_segment, write_segment
from agentrl_core.engine import Request, Sampling, Segment, vllm_output
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import DataError, EngineError, UnsupportedError


def as_sets(experts: Any) -> list[list[list[int]]]:
    """Sort the experts of each token and layer: their order does not matter."""
    return np.sort(np.asarray(experts, np.int64).reshape(len(experts), -1, 2), axis=2).tolist()


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_a_segment_has_the_experts_of_all_tokens_that_were_read(family: str, tokenizer: Any) -> None:
    model: Any = tiny_moe(family)
    generate = engine.Transformers(model, tokenizer, routed_experts=True)
    random = np.random.default_rng(0)
    common = random.integers(0, VOCABULARY, 70, dtype=np.int32)  # long enough to be computed once
    prompts = [random.integers(0, VOCABULARY, length, dtype=np.int32) for length in (1, 2, 9, 9)]
    prompts += [np.concatenate([common, prompt]) for prompt in prompts[1:]]
    sampling = Sampling(max_tokens=6)
    first = generate_all(generate, [Request(prompt, 10 + row, sampling) for row, prompt in enumerate(prompts)])
    # Another turn, and a fork inside of the first answer: both start with a cached prefix.
    longer = [np.concatenate([prompt, one.tokens, [5, 6]]) for prompt, one in zip(prompts, first, strict=True)]
    longer += [np.append(prompt, one.tokens[:2]) for prompt, one in zip(prompts, first, strict=True)]
    second = generate_all(
        generate, [Request(prompt.astype(np.int32), 90 + row, sampling) for row, prompt in enumerate(longer)]
    )
    assert sum(int(one.cached_tokens or 0) for one in second) > 300
    for prompt, segment in zip([*prompts, *longer], [*first, *second], strict=True):
        experts = segment.routed_experts
        assert experts is not None
        assert experts.dtype == np.uint8
        inputs = np.concatenate([prompt, segment.tokens]).astype(np.int32)[:-1]
        assert as_sets(experts) == as_sets(chosen_experts(model, inputs))


@pytest.mark.parametrize(
    "program",
    [
        rollout.Independent(),
        rollout.ObservationWindow(observations=1, placeholder="7"),
        rollout.EntropyBranching(budget=6, initial=2, beam=2, probability=1.0, entropy_weight=0.2),
    ],
    ids=lambda program: type(program).__name__,
)
def test_every_token_that_training_reads_has_its_experts(program: Any, tokenizer: Any) -> None:
    model: Any = tiny_moe("qwen3_moe")
    generate: Any = engine.Transformers(model, tokenizer, routed_experts=True)
    generate.chat = Numbers.chat
    recipe = recipes.GRPO.replace(rollout=program)
    collect = arl.Collector(
        generate, SumWorld(), recipe, sampling=Sampling(max_tokens=3), context_tokens=96, task_pool=4
    )
    batch = collect(tasks=2, group_size=6)
    contexts = batch.contexts()
    known = batch.column("routed_experts.known", "node_token") != 0
    experts = batch.column("routed_experts", "node_token")
    assert len(known) > known.sum() > 0.5 * len(known)
    assert batch.column("routed_experts", "token").shape == (len(batch.column("token", "token")), 4)
    plan = batch.plan(np.arange(batch.num_draws), 10_000)
    count = 0
    for index in range(len(plan)):
        stored, planned = plan.row_tokens(index), plan[index]
        np.testing.assert_array_equal(batch.column("token", "node_token")[stored], planned.input_ids)
        assert known[stored].all(), "each token that is read was read by the engine"
        for begin, end in zip(planned.cu_seqlens, planned.cu_seqlens[1:], strict=False):
            expected = chosen_experts(model, planned.input_ids[begin:end].astype(np.int32))
            assert as_sets(experts[stored[begin:end]]) == as_sets(expected)
            count += 1
    assert count == len(contexts.draws)
    tree = batch.plan(np.arange(batch.num_draws), 10_000, layout="tree")
    for index in range(len(tree)):
        stored = tree.row_tokens(index)
        np.testing.assert_array_equal(batch.column("token", "node_token")[stored], tree[index].input_ids)


def mismatch(model: Any, batch: arl.Batch, *, replay: bool) -> float:
    """Return the mean absolute difference of the trainer's log-probs from those of the engine."""
    (update,) = recipes.GRPO.updates(batch)
    logprobs = np.zeros(len(batch.column("token", "token")), np.float32)
    with torch.no_grad():
        for pack in update.pack(max_tokens=4096, layout="sequence", replay_routes=replay):
            pack.to_tokens(pack.run(model).logprob, logprobs)
    return float(np.abs(logprobs - batch.column("behaviour_logprob", "token")).mean())


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_with_replay_the_trainer_is_closer_to_the_engine_in_bf16(family: str, tokenizer: Any) -> None:
    model: Any = tiny_moe(family, torch.bfloat16, experts=64, scale=4.0)
    generate = engine.Transformers(model, tokenizer, routed_experts=True)
    random = np.random.default_rng(1)
    prompts = [random.integers(0, VOCABULARY, 12, dtype=np.int32) for _ in range(24)]
    requests = [Request(prompt, row, Sampling(max_tokens=40)) for row, prompt in enumerate(prompts)]
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member, (request, segment) in enumerate(zip(requests, generate_all(generate, requests), strict=True)):
        trajectory = forest.start(0, member)
        forest.append(trajectory, request.tokens, kind="prompt")
        columns: Any = {"routed_experts": (0, segment.routed_experts)}
        forest.append(trajectory, segment.tokens, kind="action", logprobs=segment.logprobs, columns=columns)
        forest.finish(trajectory, reward=float(member))
    batch = recipes.GRPO.credit(forest.freeze())
    without, with_replay = (mismatch(model, batch, replay=replay) for replay in (False, True))
    assert 0 < with_replay < 0.9 * without, (with_replay, without)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("cached", [None, 3])
def test_a_segment_with_routed_experts_round_trips(dtype: Any, cached: int | None) -> None:
    experts = np.arange(12, dtype=dtype).reshape(3, 4)
    nothing = np.zeros(2, np.float32)
    segment = Segment(np.array([1, 2], np.int32), nothing, None, "stop", 0, 7, None, cached, experts)
    again = read_segment(write_segment(segment))
    assert again.cached_tokens == cached
    assert again.routed_experts is not None
    assert again.routed_experts.dtype == dtype
    np.testing.assert_array_equal(again.routed_experts, experts)
    with pytest.raises(DataError, match=r"routed_experts is of shape \(12,\)"):
        Segment(np.array([1, 2], np.int32), nothing, None, "stop", 0, 7, None, None, experts.reshape(-1))


def test_a_model_without_routers_is_refused(make_model: Any, tokenizer: Any) -> None:
    with pytest.raises(UnsupportedError, match="routed_experts: LlamaForCausalLM has no router"):
        engine.Transformers(make_model("llama"), tokenizer, routed_experts=True)


def test_routed_experts_from_vllm_exclude_the_last_token() -> None:
    request = Request(np.array([4, 5, 6], np.int32), 0, Sampling(max_tokens=2))
    chosen = (np.array([7, 8], np.int32), np.array([-0.5, -0.25], np.float32))
    likeliest = (np.zeros((2, 10), np.int32), np.full((2, 10), -3.0, np.float32))
    for rows in (4, 5, 3):
        reported = np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2)
        segment = vllm_output.segment(
            request, chosen, likeliest, aborted=False, version=0, cached_tokens=0, routed_experts=reported
        )
        if rows == 3:
            assert segment.routed_experts is None, "vLLM lost a row"
        else:
            assert segment.routed_experts is not None
            np.testing.assert_array_equal(segment.routed_experts, reported[:4].reshape(4, 4))


def test_a_server_reports_experts_as_a_file_of_numpy(tokenizer: Any) -> None:
    pytest.importorskip("httpx")

    def encoded(tokens: list[int]) -> str:
        with io.BytesIO() as file:
            np.save(file, np.array(tokens, np.uint8)[:-1, None, None] + np.arange(4, dtype=np.uint8).reshape(2, 2))
            return base64.b64encode(file.getvalue()).decode()

    server = StubVllm()
    try:
        generate = engine.VllmServer([server.url], tokenizer, entropies=False)
        requests = [Request(np.array([5, 6], np.int32), seed, Sampling(max_tokens=3)) for seed in range(3)]
        assert all(segment.routed_experts is None for segment in generate_all(generate, requests))
        server.experts = encoded
        for segment in generate_all(generate, requests):
            assert segment.routed_experts is not None
            assert segment.routed_experts.dtype == np.uint8
            inputs = [5, 6, *segment.tokens[:-1].tolist()]
            assert segment.routed_experts.tolist() == [[token + place for place in range(4)] for token in inputs]
        server.experts = lambda _: "bm90aGluZw=="
        with pytest.raises(EngineError, match="returned routed_experts that are not a NumPy array"):
            generate_all(generate, requests[:1])
        generate.close()
    finally:
        server.stop()
