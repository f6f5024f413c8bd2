"""Replay recorded experts in the routers of a model in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_moe import EXPERTS, TOP, VOCABULARY, chosen_experts, routers, tiny_moe
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

FAMILIES = ["qwen3_moe", "olmoe", "mixtral", "deepseek_v3"]
PROMPT = [3, 1, 4, 1, 5]
ANSWERS = ([9, 2, 6, 5, 3], [9, 2, 7, 1])


def rolled_out(experts: Any, *, missing: int = 0) -> arl.Batch:
    """Return two rollouts; `experts(tokens)` are recorded for the context, except for the first `missing` tokens."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member, answer in enumerate(ANSWERS):
        trajectory = forest.start(0, member)
        forest.append(trajectory, PROMPT, kind="prompt")
        rows = experts(np.array([*PROMPT, *answer[:-1]], np.int32)).astype(np.uint8)[missing:]
        columns = {"routed_experts": (missing, rows)}
        logprobs = [-0.5] * len(answer)
        forest.append(trajectory, answer, kind="action", logprobs=logprobs, columns=columns)
        forest.finish(trajectory, reward=float(member))
    return recipes.GRPO.credit(forest.freeze())


def own_experts(model: Any) -> Any:
    """Return a function of tokens: the experts that a model chooses in a plain forward."""

    def experts(tokens: Any) -> Any:
        chosen: list[torch.Tensor] = []
        handles = [r.register_forward_hook(lambda _, __, output: chosen.append(output[2])) for r in routers(model)]
        with torch.no_grad():
            model(torch.from_numpy(tokens.astype(np.int64))[None])
        for handle in handles:
            handle.remove()
        return torch.cat(chosen, dim=1).numpy()

    return experts


def other_experts(model: Any) -> Any:
    """Return a function of tokens: the same experts for equal prefixes, and none that a model chooses."""

    def experts(tokens: Any) -> Any:
        chosen = chosen_experts(model, tokens).reshape(len(tokens), -1, TOP)
        return ((chosen.max(axis=2, keepdims=True) + 1 + np.arange(TOP)) % EXPERTS).reshape(len(tokens), -1)

    return experts


def gradients(model: Any, batch: arl.Batch, layout: Any, *, replay: bool) -> tuple[np.ndarray, list[torch.Tensor], Any]:
    """Return log-probs by token, gradients of their sum, and metrics of one step."""
    model.zero_grad()
    updates = recipes.GRPO.updates(batch)
    (update,) = updates
    logprobs = np.zeros(len(batch.column("token", "token")), np.float32)
    for pack in update.pack(max_tokens=64, layout=layout, model=model, replay_routes=replay):
        output = pack.run(model)
        pack.to_tokens(output.logprob, logprobs)
        update.loss(output, pack)
        (output.logprob * pack.pair_offsets.diff()).sum().backward()
    return logprobs, [p.grad.clone() for p in model.parameters() if p.grad is not None], updates.metrics


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_the_routers_own_experts_changes_nothing(family: str, layout: str) -> None:
    model: Any = tiny_moe(family)

    batch = rolled_out(own_experts(model))
    plain, without, _ = gradients(model, batch, layout, replay=False)
    replayed, with_routes, metrics = gradients(model, batch, layout, replay=True)
    np.testing.assert_array_equal(replayed, plain)
    # Padded rows add up in another order if experts are gathered instead of sorted.
    tolerance = {"rtol": 1e-3, "atol": 1e-7} if layout == "padded" else {"rtol": 0, "atol": 0}
    for one, other in zip(with_routes, without, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
    assert metrics["routed_tokens"] == 1.0


def by_hand(model: Any, tokens: list[int], experts: Any) -> torch.Tensor:
    """Return log-probs of a sequence routed to given experts, weighted by softmax of all logits over these."""
    blocks = [layer.mlp for layer in model.base_model.layers]
    originals = [block.forward for block in blocks]
    for place, block in enumerate(blocks):
        rows = torch.from_numpy(experts[:, TOP * place : TOP * (place + 1)].astype(np.int64))

        def forward(states: torch.Tensor, block: Any = block, rows: torch.Tensor = rows) -> torch.Tensor:
            out = torch.zeros_like(states[0])
            for token, state in enumerate(states[0]):
                p = torch.softmax(state @ block.gate.weight.T, -1)[rows[token]]
                p = p / p.sum() if getattr(block.gate, "norm_topk_prob", True) else p
                for weight, expert in zip(p, rows[token], strict=True):
                    gate, up = (block.experts.gate_up_proj[expert] @ state).chunk(2)
                    out[token] += weight * (block.experts.down_proj[expert] @ (block.experts.act_fn(gate) * up))
            return out[None]

        block.forward = forward
    logits = model(torch.tensor([tokens[:-1]])).logits[0]
    for block, original in zip(blocks, originals, strict=True):
        block.forward = original
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "mixtral"])
def test_tokens_go_to_the_recorded_experts(family: str, layout: str) -> None:
    model: Any = tiny_moe(family)

    others = other_experts(model)
    batch = rolled_out(others)
    result, result_gradients, _ = gradients(model, batch, layout, replay=True)
    plain, _, _ = gradients(model, batch, layout, replay=False)
    logprobs = [
        by_hand(model, [*PROMPT, *answer], others(np.array([*PROMPT, *answer[:-1]], np.int32)))[len(PROMPT) - 1 :]
        for answer in ANSWERS
    ]
    expected = torch.cat(logprobs).detach().numpy()
    np.testing.assert_allclose(result, expected, atol=2e-5)
    assert np.abs(plain - expected).max() > 1e-3
    # Gradients flow through the weights of the experts.
    model.zero_grad()
    torch.cat(logprobs).sum().backward()
    expected_gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for one, other in zip(result_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)


def test_tokens_without_a_record_are_routed_by_the_model_and_counted() -> None:
    model: Any = tiny_moe("qwen3_moe")
    others = lambda tokens: np.tile(np.arange(2 * TOP) % EXPERTS, (len(tokens), 1))  # noqa: E731
    batch = rolled_out(others, missing=len(PROMPT) + 1)
    assert batch.column("routed_experts.known", "node_token").sum() == sum(len(answer) - 2 for answer in ANSWERS)
    _, _, metrics = gradients(model, batch, "sequence", replay=True)
    trained = sum(map(len, ANSWERS))
    assert metrics["routed_tokens"] == pytest.approx(sum(len(answer) - 2 for answer in ANSWERS) / trained)
    mixed = lambda tokens: np.where(  # noqa: E731
        np.arange(len(tokens))[:, None] <= len(PROMPT), chosen_experts(model, tokens), others(tokens)
    )
    # The second layer's routing depends on the first one, which is the model's own up to there.
    result, _, _ = gradients(model, batch, "sequence", replay=True)
    expected, _, _ = gradients(model, rolled_out(mixed), "sequence", replay=True)
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_layers_that_are_recomputed_replay_the_same_experts(family: str, layout: str) -> None:
    model: Any = tiny_moe(family).train()
    batch = rolled_out(other_experts(model))
    expected, expected_gradients, _ = gradients(model, batch, layout, replay=True)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handles = [router.register_forward_hook(count) for router in routers(model)]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": layout == "padded"})
    result, result_gradients, metrics = gradients(model, batch, layout, replay=True)
    recomputed = calls
    gradients(model, batch, layout, replay=False)
    assert recomputed == calls - recomputed >= 2 * len(handles), "each router once forward and once backward"
    assert metrics["routed_tokens"] == 1.0
    np.testing.assert_array_equal(result, expected)
    for one, other in zip(result_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(result_gradients) == len(expected_gradients) > 0
    assert not any(len(router._forward_hooks) > 1 for router in routers(model))


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
@pytest.mark.parametrize("missing", [0, 7])
def test_cached_gradients_replay_in_both_runs_of_a_pack(layout: Any, missing: int) -> None:
    model: Any = tiny_moe("qwen3_moe")
    batch = rolled_out(other_experts(model), missing=missing)

    def gradient_of(most: int = 0) -> tuple[list[torch.Tensor], Any]:
        """Return gradients with packs of at most `most` tokens; 0: one pack of all tokens, without cached gradients."""
        model.zero_grad()
        updates = recipes.GRPO.updates(batch)
        (update,) = updates
        if most:
            values: Any = update.gradient_cached(model, max_tokens=most, layout=layout, replay_routes=True)
        else:
            packs = update.pack(max_tokens=64, layout=layout, replay_routes=True)
            values = (update.loss(pack.run(model), pack) for pack in packs)
        count = 0
        for value in values:
            value.backward()
            count += 1
        assert (count > 1) == (most == 9)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None], updates.metrics

    expected, metrics = gradient_of()
    pairs = 7 if layout == "tree" else 9  # two tokens that both branches sampled are one pair each
    assert metrics["routed_tokens"] == pytest.approx(3 / pairs if missing else 1.0)
    for most in (64, 9):
        result, of_cached = gradient_of(most)
        assert of_cached["routed_tokens"] == pytest.approx(metrics["routed_tokens"])
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    (update,) = recipes.GRPO.updates(batch)
    plain = sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    for value in update.gradient_cached(model, layout=layout, max_tokens=64):
        value.backward()
    assert abs(sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None) - plain) > 1e-3 * plain


def test_rows_of_layers_without_experts_are_left_out() -> None:
    """vLLM and slime record zeros for a dense layer."""
    model: Any = tiny_moe("deepseek_v3")  # its first layer is dense
    assert len(routers(model)) == 1
    others = other_experts(model)
    result, result_gradients, _ = gradients(model, rolled_out(others), "tree", replay=True)
    plain, _, _ = gradients(model, rolled_out(others), "tree", replay=False)
    assert np.abs(result - plain).max() > 1e-3
    padded = rolled_out(lambda tokens: np.pad(others(tokens), ((0, 0), (TOP, 0))), missing=0)
    again, same, _ = gradients(model, padded, "tree", replay=True)
    np.testing.assert_array_equal(again, result)
    for one, other in zip(same, result_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("teacher", ["qwen3_moe", "mixtral"])
def test_a_teacher_routes_by_itself(teacher: str) -> None:
    """A teacher routes by itself: the pack's experts are the policy's and mean nothing in another model."""
    model: Any = tiny_moe("qwen3_moe")
    other: Any = tiny_moe(teacher, seed=5)
    batch = rolled_out(own_experts(model))  # so that the policy's outputs do not depend on the replay
    recipe = recipes.GRPO.replace(loss=loss.Divergence(beta=1.0, support="vocabulary"))
    (update,) = recipe.updates(batch)
    divergences = []
    for replay in (True, False):
        (pack,) = update.pack(max_tokens=64, layout="sequence", replay_routes=replay)
        assert (pack.routed_experts is not None) == replay
        with torch.no_grad():
            divergences.append(pack.run(model, teacher=other).divergence)
    assert float(divergences[1].mean()) > 0.01
    torch.testing.assert_close(divergences[0], divergences[1], rtol=0, atol=0)


def test_routes_that_cannot_be_replayed_are_refused() -> None:
    model: Any = tiny_moe("qwen3_moe")
    batch = rolled_out(lambda tokens: chosen_experts(model, tokens))
    (update,) = recipes.GRPO.updates(batch)
    (pack,) = update.pack(max_tokens=64, layout="sequence", replay_routes=True)
    with pytest.raises(InvalidInputError, match="the pack records 3 experts per token, but "):
        replace(pack, routed_experts=pack.routed_experts[:, :3]).run(model)
    model.train()
    model.model.layers[1] = checkpoint_wrapper(model.model.layers[1])
    padded = replace(pack, layout="padded")
    with pytest.raises(UnsupportedError, match="would recompute them with other experts"):
        padded.run(model)
    with torch.no_grad():
        padded.run(model)  # nothing is recomputed
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, PROMPT, kind="prompt")
        forest.append(trajectory, [VOCABULARY - 1, member], kind="action", logprobs=[-0.5, -0.5])
        forest.finish(trajectory, reward=float(member))
    (update,) = recipes.GRPO.updates(recipes.GRPO.credit(forest.freeze()))
    with pytest.raises(InvalidInputError, match="no rollout of the batch recorded 'routed_experts'"):
        update.pack(max_tokens=64, replay_routes=True)
