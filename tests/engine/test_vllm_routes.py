"""The real vLLM reports the experts of tokens, with its second model runner: in a process of its own, on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import second_runner
import torch
from checked_segments import check
from entropy_rule import SAMPLINGS, checked_heights
from number_world import Numbers, SumWorld
from tiny_moe import TOP, VOCABULARY, chosen_experts, tiny_moe

import agentrl_core as arl
from agentrl_core import engine, recipes, rollout
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import generate_all

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": TOP,
}
"""Sizes supported by vLLM's CPU kernels."""
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 32},
    "olmoe": {"intermediate_size": 32},
    "dense_layer": {"head_dim": 32, "moe_intermediate_size": 32, "mlp_only_layers": [0]},
}
is_inside = pytest.mark.skipif(not second_runner.is_chosen, reason="runs in a process of its own")


@pytest.mark.skipif(second_runner.is_chosen, reason="runs the others")
@pytest.mark.parametrize("family", MODELS)
def test_in_a_process_with_the_second_model_runner(family: str) -> None:
    here = Path(__file__)
    support = {"PYTHONPATH": str(here.parents[1] / "support"), "OMP_NUM_THREADS": "1"}
    environment = os.environ | support | second_runner.ENVIRONMENT
    command = [sys.executable, "-m", "pytest", "-p", "second_runner", "-p", "no:cacheprovider", "-q", str(here)]
    ended = subprocess.run([*command, "-k", family], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


def tiny(family: str, seed: int = 3, **options: Any) -> Any:
    kind = "qwen3_moe" if family == "dense_layer" else family
    return tiny_moe(kind, seed=seed, **SHAPE, **MODELS[family], **options)


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest, tokenizer: Any) -> Iterator[tuple[Any, Any, str]]:
    model = tiny(request.param)
    options: dict[str, Any] = {"max_model_len": 128, "block_size": 32, "max_num_batched_tokens": 256}
    vllm_engine = engine.Vllm(model, tokenizer, max_num_seqs=16, enable_return_routed_experts=True, **options)
    yield vllm_engine, model, request.param
    vllm_engine.close()


def as_sets(experts: Any) -> list[list[list[int]]]:
    """Sort the experts of each token and layer: their order does not matter."""
    return np.sort(np.asarray(experts, np.int64).reshape(len(experts), -1, TOP), axis=2).tolist()


def of_experts(experts: Any, family: str) -> Any:
    """Drop the layer without experts, for which vLLM reports zeros."""
    assert experts.shape[1] == 2 * TOP
    if family != "dense_layer":
        return experts
    assert not experts[:, :TOP].any()
    return experts[:, TOP:]


def check_experts(model: Any, family: str, prompt: Any, segment: Segment) -> None:
    assert segment.routed_experts is not None
    assert segment.routed_experts.dtype == np.uint8
    inputs = np.concatenate([prompt, segment.tokens]).astype(np.int32)[:-1]
    assert as_sets(of_experts(segment.routed_experts, family)) == as_sets(chosen_experts(model, inputs))


@is_inside
def test_a_segment_has_the_experts_of_all_tokens_that_were_read(served: tuple[Any, Any, str]) -> None:
    generate, model, family = served
    random = np.random.default_rng(0)
    common = random.integers(0, VOCABULARY, 70, dtype=np.int32)  # two blocks of the prefix cache
    prompts = [random.integers(0, VOCABULARY, length, dtype=np.int32) for length in (1, 2, 9, 40)]
    prompts += [np.concatenate([common, prompt]) for prompt in prompts[1:3]]
    first = generate_all(
        generate, [Request(prompt, 10 + row, Sampling(max_tokens=6)) for row, prompt in enumerate(prompts)]
    )
    # Another turn, and a fork inside of the first answer: both start with a cached prefix.
    longer = [np.concatenate([prompt, one.tokens, [5, 6]]) for prompt, one in zip(prompts, first, strict=True)]
    longer += [np.append(prompt, one.tokens[:2]) for prompt, one in zip(prompts, first, strict=True)]
    longer = [prompt.astype(np.int32) for prompt in longer]
    second = generate_all(
        generate, [Request(prompt, 90 + row, Sampling(max_tokens=4)) for row, prompt in enumerate(longer)]
    )
    assert sum(int(one.cached_tokens or 0) for one in second) >= 2 * (32 + 64 + 64)
    for prompt, segment in zip([*prompts, *longer], [*first, *second], strict=True):
        check_experts(model, family, prompt, segment)


@is_inside
def test_recorded_experts_are_those_of_the_updated_weights(served: tuple[Any, Any, str], own_words: Any) -> None:
    generate, model, family = served
    other = tiny(family, seed=4)
    prompt = np.arange(40, dtype=np.int32)  # its first block was cached under the old weights
    for follows in (other, model):
        generate.update_weights(follows, version=generate.policy_version + 1)
        check(generate, follows, own_words, Sampling(temperature=0.7, max_tokens=6), generate.policy_version)
        [segment] = generate_all(generate, [Request(prompt, 1, Sampling(max_tokens=5))])
        check_experts(follows, family, prompt, segment)


@is_inside
def test_an_aborted_segment_has_the_experts_of_the_tokens_it_read(served: tuple[Any, Any, str]) -> None:
    generate, model, family = served
    requests = [Request(np.arange(1, 9, dtype=np.int32), seed, Sampling(max_tokens=40)) for seed in range(2)]
    steps, step = 0, generate._step

    def counted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 12:
            generate.abort(requests[0])
        return step()

    generate._step = counted
    try:
        aborted, completed = generate_all(generate, requests)
    finally:
        del generate._step
    assert (aborted.finish_reason, completed.finish_reason) == ("abort", "length")
    assert 5 < len(aborted.tokens) < 40 == len(completed.tokens)
    for segment in (aborted, completed):
        check_experts(model, family, requests[0].tokens, segment)


@is_inside
@pytest.mark.parametrize("program", [rollout.Independent(), rollout.ObservationWindow(observations=1, placeholder="7")])
def test_every_token_that_training_reads_has_its_experts(program: Any, served: tuple[Any, Any, str]) -> None:
    generate, model, family = served
    chat, generate.chat = generate.chat, Numbers.chat
    try:
        collect = arl.Collector(
            generate,
            SumWorld(),
            recipes.GRPO.replace(rollout=program),
            sampling=Sampling(max_tokens=3),
            context_tokens=96,
            task_pool=4,
        )
        batch = collect(tasks=2, group_size=6)
    finally:
        generate.chat = chat
    known = batch.column("routed_experts.known", "node_token") != 0
    experts = batch.column("routed_experts", "node_token")
    plan = batch.plan(np.arange(batch.num_draws), 10_000)
    count = 0
    for index in range(len(plan)):
        stored, planned = plan.row_tokens(index), plan[index]
        assert known[stored].all(), "each token that is read was read by the engine"
        for begin, end in zip(planned.cu_seqlens, planned.cu_seqlens[1:], strict=False):
            expected = chosen_experts(model, planned.input_ids[begin:end].astype(np.int32))
            assert as_sets(of_experts(experts[stored[begin:end]], family)) == as_sets(expected)
            count += 1
    assert count >= batch.num_draws


@is_inside
def test_with_replay_a_trainer_in_bf16_is_closer_to_vllm(served: tuple[Any, Any, str]) -> None:
    generate, _, family = served
    model = tiny(family, scale=4.0)
    generate.update_weights(model, version=generate.policy_version + 1)
    random = np.random.default_rng(1)
    prompts = [random.integers(0, VOCABULARY, 12, dtype=np.int32) for _ in range(12)]
    requests = [Request(prompt, row, Sampling(max_tokens=24)) for row, prompt in enumerate(prompts)]
    forest = arl.Forest()
    forest.add_group(0, "task")
    members = [forest.start(0, member) for member in range(len(requests))]
    segments = generate_all(generate, requests)
    forest.ingest(
        members,
        [request.tokens for request in requests],
        [segment.tokens for segment in segments],
        logprobs=[segment.logprobs for segment in segments],
        columns={"routed_experts": [(0, segment.routed_experts) for segment in segments]},
    )
    for member, trajectory in enumerate(members):
        forest.finish(trajectory, reward=float(member))
    batch = recipes.GRPO.credit(forest.freeze())
    trainer = tiny(family, scale=4.0).to(torch.bfloat16)
    (update,) = recipes.GRPO.updates(batch)
    differences = []
    for replay in (False, True):
        logprobs = np.zeros(len(batch.column("token", "token")), np.float32)
        with torch.no_grad():
            for pack in update.pack(max_tokens=4096, layout="sequence", replay_routes=replay):
                pack.to_tokens(pack.run(trainer).logprob, logprobs)
        differences.append(float(np.abs(logprobs - batch.column("behaviour_logprob", "token")).mean()))
    assert 0 < differences[1] < (1.0 if family == "dense_layer" else 0.9) * differences[0], differences


@is_inside
def test_the_temperature_of_each_token_follows_from_its_entropy(served: tuple[Any, Any, str]) -> None:
    """The second runner calls the processor of logits before the temperature."""
    generate, _, family = served
    model = tiny(family)
    generate.update_weights(model, version=generate.policy_version + 1)
    requests = [Request(np.array([3, 1 + row], np.int32), row, SAMPLINGS[row % 2]) for row in range(6)]
    heights = checked_heights(generate, model, requests)
    assert max(map(abs, heights)) > 0.1
