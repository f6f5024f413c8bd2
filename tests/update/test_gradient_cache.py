"""`Update.gradient_cached`: the loss of the whole update and its gradient, in packs of any size."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from branches import agree_on_branches, by_place
from hand_made import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import LOSSES
from torch import Tensor, distributed, nn
from updates import Rollouts, close, largest_unit

from agentrl_core import loss, recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.buffers import PackBuffers
from agentrl_core.model.pack import Pack, PackOutput
from agentrl_core.update.minibatches import Updates
from agentrl_core.update.optimizer_step import Update

EACH = pytest.mark.parametrize("name", LOSSES)
SOME = ["covariance", "bapo", "siren", "light_if, policy, update", "forking_tokens", "pacs", "m2po", "drpo"]
SEVERAL = pytest.mark.parametrize("name", [*SOME, "safe, critic, update", "inpo", "everything"])
WHOLE = 10**6

ValueAndGradients = tuple[Tensor, list[Tensor]]


@functools.cache
def rolled(name: str) -> Rollouts:
    rollouts = Rollouts.random(LOSSES[name], seed=len(name) % 3)
    agree_on_branches(rollouts)
    return rollouts


def first_update(name: str) -> tuple[Updates, Update]:
    updates = recipes.GRPO.replace(loss=LOSSES[name]).updates(rolled(name).batch)
    (update,) = updates
    return updates, update


@functools.cache
def in_one_pack(name: str) -> tuple[ValueAndGradients, dict[str, float]]:
    """Return value, gradients and metrics of one pack that holds the whole update."""
    updates, update = first_update(name)
    result = rolled(name).by_packs(update, list(update.pack(max_tokens=WHOLE)))
    return result, updates.metrics


def answers_of(name: str) -> Callable[[Pack], PackOutput]:
    return lambda pack: rolled(name).outputs(pack.token)


def added(name: str, values: Iterator[Tensor]) -> tuple[ValueAndGradients, int]:
    """Return sums over packs, and the number of packs."""
    parts = [rolled(name).gradients(value) for value in values]
    gradients = [torch.stack(each).sum(0) for each in zip(*(one for _, one in parts), strict=True)]
    return (torch.stack([value for value, _ in parts]).sum(), gradients), len(parts)


def least(name: str) -> int:
    """Return the tokens of the longest sequence: no pack can be smaller."""
    return largest_unit(rolled(name).batch, first_update(name)[1], "token")


@EACH
@settings(max_examples=5, deadline=None)
@given(room=st.integers(0, 100))
def test_packs_of_any_size_are_one_pack(name: str, room: int) -> None:
    """Packs may split every unit, and need not keep any whole: the same rows in the same order, bit for bit."""
    expected, metrics = in_one_pack(name)
    updates, update = first_update(name)
    result, count = added(name, update.gradient_cached(answers_of(name), max_tokens=least(name) + room))
    assert count > 1
    torch.testing.assert_close(result[0], expected[0], rtol=1e-6, atol=1e-9)  # a share by float32 weights for each pack
    for gradient, right in zip(result[1], expected[1], strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=0)
    assert updates.metrics == metrics


@EACH
@settings(max_examples=3, deadline=None)
@given(room=st.integers(0, 60))
def test_the_tree_layout_is_the_same(name: str, room: int) -> None:
    policy = LOSSES[name]
    expected, metrics = in_one_pack(name)
    updates, update = first_update(name)
    values = update.gradient_cached(answers_of(name), max_tokens=least(name) + room, layout="tree", balance="work")
    result, count = added(name, values)
    assert count > 1
    # Sums of float32 weights over branches.
    assert close(by_place(rolled(name), result), by_place(rolled(name), expected), 1e-6)
    if policy.foldable:  # a row may stand for several tokens, and metrics count rows
        assert updates.metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-6, abs=1e-8)
    else:
        assert updates.metrics == metrics
        for gradient, right in zip(result[1], expected[1], strict=True):
            torch.testing.assert_close(gradient, right, rtol=0, atol=0)


@EACH
def test_it_is_the_loss_of_all_rows_in_loops(name: str) -> None:
    policy, rollouts = LOSSES[name], rolled(name)
    expected = rollouts.at_once(policy)
    result, _ = added(name, first_update(name)[1].gradient_cached(answers_of(name), max_tokens=least(name)))
    assert close(result, expected, 1e-5)  # float32 products of weight and advantage there


@functools.cache
def network(**options: object) -> nn.Module:
    return tiny_model("llama", **options)


def stepped(model: nn.Module, values: Iterator[Tensor]) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    total = 0.0
    for value in values:
        value.backward()
        total += value.item()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    return total, gradients


def same(result: tuple[float, dict[str, Tensor]], expected: tuple[float, dict[str, Tensor]], tolerance: float) -> None:
    assert result[0] == pytest.approx(expected[0], rel=1e-6, abs=1e-9)
    assert result[1].keys() == expected[1].keys()
    assert max(gradient.abs().max() for gradient in expected[1].values()) > 1e-8
    largest = max(gradient.abs().max().item() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        torch.testing.assert_close(result[1][name], gradient, rtol=0, atol=tolerance * largest, msg=name)


@SEVERAL
def test_a_model_feels_the_same(name: str) -> None:
    """A tiny Llama in fp64, with a value head if needed: in one pack, in several, and in trees."""
    policy, model = LOSSES[name], network()
    torch.manual_seed(1)
    model.value_head = nn.Linear(32, 2 if "soft_minimum" in repr(policy) else 1).double()
    _, update = first_update(name)
    (pack,) = update.pack(max_tokens=WHOLE, layout="sequence")
    expected = stepped(model, iter([update.loss(pack.run(model), pack)]))
    # Exact equality can break at edges: quantiles and bounds depend on one row's number.
    for options in (
        {"max_tokens": least(name) + 20, "layout": "sequence"},
        {"max_tokens": least(name), "layout": "sequence", "buffers": PackBuffers(least(name))},
        {"max_tokens": least(name) + 9, "layout": "tree"},
        {"max_tokens": WHOLE, "layout": "sequence"},
    ):
        tolerance = 1e-6 if options.get("layout") == "tree" and policy.foldable else 1e-9
        same(stepped(model, update.gradient_cached(model, **options)), expected, tolerance)


@pytest.mark.parametrize("name", ["forking_tokens", "light_if, policy, update", "pacs"])
def test_logits_are_not_kept_with_linear_logprob(name: str) -> None:
    model = network()

    def run(pack: Pack) -> PackOutput:
        outputs = loss.linear_logprob(
            pack.forward(model),
            model.lm_head.weight,
            pack.target,
            pack.streams.inverse_temperature,
            source_row=pack.source_row,
        )
        return PackOutput(*outputs)

    _, update = first_update(name)
    expected = stepped(model, update.gradient_cached(model, max_tokens=WHOLE))
    same(stepped(model, update.gradient_cached(run, max_tokens=least(name))), expected, 1e-9)
    with pytest.raises(InvalidInputError, match=r"returned FusedOutput for a pack; .*linear_logprob"):
        list(update.gradient_cached(lambda pack: fused(model, pack, LOSSES[name]), max_tokens=least(name)))


def fused(model: nn.Module, pack: Pack, policy: loss.Loss) -> PackOutput:
    return loss.fused(pack.forward(model), model.lm_head.weight, pack, policy)


def test_dropout_drops_the_same_in_both_runs() -> None:
    model = network(attention_dropout=0.4).train()
    _, update = first_update("forking_tokens")
    logprobs: list[Tensor] = []

    def run(pack: Pack) -> PackOutput:
        output = pack.run(model)
        logprobs.append(output.logprob.detach())
        return output

    for value in update.gradient_cached(run, max_tokens=least("forking_tokens")):
        torch.rand(3)  # other code draws random numbers too
        value.backward()
    half = len(logprobs) // 2
    for first, second in zip(logprobs[:half], logprobs[half:], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    exact = next(iter(update.pack(max_tokens=WHOLE))).run(network())
    assert (torch.cat(logprobs[:half]).sort().values - exact.logprob.detach().sort().values).abs().max() > 0.01


def test_a_pack_alone_is_run_once() -> None:
    calls = []

    def run(pack: Pack) -> PackOutput:
        calls.append(len(pack.token))
        return answers_of("m2po")(pack)

    _, update = first_update("m2po")
    assert len(list(update.gradient_cached(run, max_tokens=WHOLE))) == len(calls) == 1
    count = len(list(update.gradient_cached(run, max_tokens=least("m2po"))))
    assert calls[1 : 1 + count] == calls[1 + count :]
    assert sum(calls[1 : 1 + count]) == calls[0]


def test_log_probs_of_minus_infinity_have_no_gradient() -> None:
    name = "forking_tokens"
    rollouts, (_, update) = rolled(name), first_update(name)
    logprob = rollouts.leaves["logprob"].detach().clone()
    logprob[next(iter(update.pack(max_tokens=WHOLE))).token[::3]] = -torch.inf
    logprob.requires_grad_()

    def run(pack: Pack) -> PackOutput:
        return PackOutput(logprob[pack.token], rollouts.outputs(pack.token).entropy)

    for value in update.gradient_cached(run, max_tokens=least(name)):
        assert value.isfinite()
        value.backward()
    assert logprob.grad.isfinite().all()
    assert (logprob.grad[logprob.isinf()] == 0).all()
    assert logprob.grad.abs().max() > 0


def test_a_scaled_value_scales_its_gradient() -> None:
    """Gradient scalers of mixed precision and gradient accumulation scale the loss in the same way."""
    name = "pacs"
    expected, _ = in_one_pack(name)
    scaled = (8.0 * value for value in first_update(name)[1].gradient_cached(answers_of(name), max_tokens=least(name)))
    result, _ = added(name, scaled)
    assert close(result, (8.0 * expected[0], [8.0 * gradient for gradient in expected[1]]), 1e-6)


def test_a_statistic_over_all_rows_is_refused_in_packs() -> None:
    _, update = first_update("forking_tokens")
    needed = largest_unit(rolled("forking_tokens").batch, update, "update")
    message = f"max_tokens is {needed - 1}, but the loss needs draw .*update.* has {needed} .*gradient_cached"
    with pytest.raises(InvalidInputError, match=message):
        update.pack(max_tokens=needed - 1)
    assert len(list(update.pack(max_tokens=needed))) == 1


def test_invalid_outputs_of_a_gradient_cached_function_are_rejected() -> None:
    _, update = first_update("forking_tokens")
    tokens = least("forking_tokens")
    with pytest.raises(InvalidInputError, match="returned tuple for a pack; return a PackOutput"):
        list(update.gradient_cached(lambda pack: (pack.target, pack.target), max_tokens=tokens))
    short = PackOutput(torch.zeros(1), torch.zeros(1))
    with pytest.raises(InvalidInputError, match=r"returned logprob of shape \(1,\) for a pack with \d+ tokens"):
        list(update.gradient_cached(lambda _: short, max_tokens=tokens))
    with pytest.raises(InvalidInputError, match=f"max_tokens is {tokens - 1}, but draw"):
        update.gradient_cached(answers_of("forking_tokens"), max_tokens=tokens - 1)


@loss.function(needs=["old_logprob"], unit="update")
def centred(logprob: Tensor, entropy: Tensor, streams: dict[str, Tensor]) -> Tensor:  # noqa: ARG001 - all take it
    return streams["weight_kl"] * (logprob - logprob.mean()).square()


def test_a_function_of_the_whole_update() -> None:
    rollouts = Rollouts.random(centred, 0)
    update = rollouts.update(centred)
    with pytest.raises(InvalidInputError, match="gradient_cached"):
        update.pack(max_tokens=99)
    (single,) = update.pack(max_tokens=WHOLE)
    logprob = rollouts.leaves["logprob"].detach()[single.token].requires_grad_()
    weight = single.streams.weight_kl.double()
    assert weight.sum().item() == pytest.approx(1.0)
    (weight * (logprob - logprob.mean()) ** 2).sum().backward()
    for value in update.gradient_cached(lambda pack: rollouts.outputs(pack.token), max_tokens=99):
        value.backward()
    gradient = rollouts.leaves["logprob"].grad[single.token]
    torch.testing.assert_close(gradient, logprob.grad, rtol=1e-12, atol=1e-14)


def test_minibatches_keep_groups_and_pairs_whole() -> None:
    """The same holds for a loss that needs the whole update."""
    both = loss.Sum(loss.Preference("token_mean"), loss.Policy(mask=loss.TopTokens(), aggregate="token_mean"))
    assert (both.unit, LOSSES["drpo"].unit) == ("update", "update")
    for policy, column in ((both, "pair"), (LOSSES["drpo"], "group_id")):
        batch = Rollouts.random(policy, 0).batch
        units = batch.column("pair", "draw") if column == "pair" else batch.keys("group_id", "draw")
        updates = list(recipes.GRPO.replace(loss=policy, minibatches=3).updates(batch))
        parts = [set(units[update.draws].tolist()) for update in updates]
        assert len(parts) == 3
        assert sum(map(len, parts)) == len(set.union(*parts))


def as_rank(
    rank: int, store: distributed.Store, name: str, layout: str
) -> tuple[ValueAndGradients, dict[str, float], int]:
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group = distributed.ProcessGroupGloo(store, rank, 2, options)
    updates = recipes.GRPO.replace(loss=LOSSES[name]).updates(None if rank else rolled(name).batch, group=group)
    update, answers = next(iter(updates)), answers_of(name)
    values = update.gradient_cached(lambda pack: replace(answers(pack), ranks=1), max_tokens=200, layout=layout)
    result, count = added(name, values)
    return result, updates.metrics, count


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@SEVERAL
@pytest.mark.filterwarnings("ignore:.*no wrapper of the model averages gradients")  # the test adds them up
@pytest.mark.filterwarnings("ignore:You are using a Backend")  # ranks are threads here
def test_ranks_make_one_loss(name: str, layout: str) -> None:
    """Run two ranks, each a thread with its own end of a real connection."""
    expected, metrics = in_one_pack(name)
    store = distributed.HashStore()
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda rank: as_rank(rank, store, name, layout), range(2)))
    (one, metrics_of_one, rounds), (other, metrics_of_other, more_rounds) = ranks
    assert rounds == more_rounds > 0
    assert metrics_of_one == metrics_of_other
    assert metrics_of_one["loss"] == pytest.approx(metrics["loss"], rel=1e-6)
    total = one[0] + other[0], [sum(pair) for pair in zip(one[1], other[1], strict=True)]
    assert close(by_place(rolled(name), total), by_place(rolled(name), expected), 1e-6)
    assert all(sum(gradient.abs().sum() for gradient in gradients) > 0 for _, gradients in (one, other))


def test_the_loop_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "components.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".gradient_cached(" in block]
    policy = network()
    before = policy.lm_head.weight.detach().clone()
    updates = first_update("forking_tokens")[0]
    names = {
        "recipe": SimpleNamespace(updates=lambda _: updates),
        "batch": None,
        "policy": policy,
        "optimizer": torch.optim.SGD(policy.parameters(), lr=0.1),
    }
    exec(code.replace("16_384", str(least("forking_tokens"))), names)
    assert not policy.lm_head.weight.equal(before)
    assert updates.metrics["updates"] == 1
    with torch.no_grad():
        policy.lm_head.weight.copy_(before)
