"""Each draw states the denominator of its ratio; compare losses and gradients with sums in fp64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.model.pack import PackOutput

BEHAVIOUR, RECOMPUTED, NONE = range(3)
ADVANTAGES = (1.0, -0.5, 2.0, 0.75)
TOKENS = 3


def grow(codes: list[int], *, recomputed: bool = True) -> Batch:
    """Return one group with a stored draw for each code; behaviour -1, recomputed -2, now -1.5."""
    forest = Forest(iteration=0)
    forest.add_group(0, "task")
    for member in range(len(codes)):
        path = forest.start(0, member)
        forest.append(path, [1, 2], kind="prompt")
        forest.append(path, [3 + member, 4, 5], kind="action", logprobs=[-1.0] * TOKENS)
        forest.step(path)
        forest.finish(path, reward=1.0)
    batch = forest.freeze()
    ids = batch.column("trajectory_id", "draw")
    batch = batch.select_draws([])
    names = ("behaviour", "recomputed", "none")
    for row, code in enumerate(codes):
        batch = batch.with_draws([ids[row]], source="replay", old_logprob=names[code], iteration=0)  # type: ignore[arg-type]
    count = len(codes)
    batch = batch.with_columns("draw", score=np.ones(count, np.float32))
    batch = batch.with_columns("token", advantage=np.repeat(np.array(ADVANTAGES[:count], np.float32), TOKENS))
    if recomputed:
        batch = batch.with_columns("token", recomputed_logprob=np.full(count * TOKENS, -2.0, np.float32))
    return batch


def evaluated(batch: Batch, policy: loss.Policy, layout: str) -> tuple[float, list[float], dict[str, float]]:
    """Return loss, its gradient by token of the batch, and metrics."""
    updates = recipes.GRPO.replace(loss=policy).updates(batch)
    total, gradient = 0.0, np.zeros(len(batch.column("token", "token")))
    for update in updates:
        for pack in update.pack(max_tokens=100, layout=layout):  # type: ignore[arg-type]
            now = torch.full((len(pack.token),), -1.5, dtype=torch.float64, requires_grad=True)
            streams = {name: torch.as_tensor(getattr(pack.streams, name)) for name in policy.streams}
            streams["weight_kl"] = torch.as_tensor(pack.streams.weight_kl)
            value, sums = policy.evaluate(loss.Tokens(now, torch.zeros_like(now), streams))
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
            assert now.grad is not None
            np.add.at(gradient, np.asarray(pack.token), now.grad.numpy())
            metrics = {name: float(entry) for name, entry in sums.items()}
    return total, gradient.tolist(), metrics


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize(
    "codes", [[BEHAVIOUR, RECOMPUTED, NONE, NONE], [NONE] * 4, [RECOMPUTED] * 4, [BEHAVIOUR, NONE]]
)
def test_the_ratio_is_the_one_that_the_row_names(codes: list[int], layout: str) -> None:
    """Now -1.5: behaviour exp(-.5), recomputed exp(.5), none 1; d/dlogp of A r is A r, unclipped."""
    policy = loss.Policy(clip=None)
    total, gradient, metrics = evaluated(grow(codes), policy, layout)
    ratios = {BEHAVIOUR: math.exp(-0.5), RECOMPUTED: math.exp(0.5), NONE: 1.0}
    count = len(codes) * TOKENS
    terms = [-ADVANTAGES[row] * ratios[code] / count for row, code in enumerate(codes) for _ in range(TOKENS)]
    assert total == pytest.approx(sum(terms), rel=1e-6)
    assert gradient == pytest.approx(terms, rel=1e-6)
    compared = [ratios[code] for code in codes if code != NONE]
    assert metrics["compared"] == len(compared) * TOKENS
    assert metrics["ratio"] == pytest.approx(sum(compared) * TOKENS, rel=1e-6)
    # k3 of old to now: exp(-d) - 1 + d with d = log r.
    k3 = sum(math.exp(-math.log(ratio)) - 1 + math.log(ratio) for ratio in compared) * TOKENS
    assert metrics["approximate_kl"] == pytest.approx(k3, rel=1e-6, abs=1e-9)


def test_a_row_without_an_old_log_prob_is_never_outside_the_clip_range() -> None:
    """Its ratio is 1."""
    batch = grow([NONE] * 4)
    total, gradient, metrics = evaluated(batch, loss.Policy(), "sequence")
    assert metrics["clip_fraction"] == 0
    assert gradient == pytest.approx([-a / 12 for a in ADVANTAGES for _ in range(TOKENS)], rel=1e-6)
    assert total == pytest.approx(-sum(ADVANTAGES) / 4, rel=1e-6)


def test_the_penalty_on_moving_from_the_old_policy_is_nothing_where_there_is_none() -> None:
    total, gradient, _ = evaluated(grow([NONE] * 2), loss.Policy(clip=None, drift=loss.KL(1.0)), "sequence")
    assert total == pytest.approx(-sum(ADVANTAGES[:2]) / 2, rel=1e-6)
    assert gradient == pytest.approx([-a / 6 for a in ADVANTAGES[:2] for _ in range(TOKENS)], rel=1e-6)


def fresh(codes: list[int], sources: list[str]) -> Batch:
    """Return draws like `grow`, each with a source."""
    batch = grow(codes)
    ids, names = batch.column("trajectory_id", "draw"), ("behaviour", "recomputed", "none")
    again = batch.select_draws([])
    for row, (code, source) in enumerate(zip(codes, sources, strict=True)):
        again = again.with_draws([ids[row]], source=source, old_logprob=names[code], iteration=0)  # type: ignore[arg-type]
    count = len(codes)
    again = again.with_columns("draw", score=np.ones(count, np.float32))
    columns = {"advantage": np.repeat(np.array(ADVANTAGES[:count], np.float32), TOKENS)}
    columns["recomputed_logprob"] = np.full(count * TOKENS, -2.0, np.float32)
    return again.with_columns("token", **columns)


def test_fresh_draws_use_the_old_logprob_of_the_recipe_and_replayed_draws_their_own() -> None:
    """Fresh rows use the recipe's setting, even if sampled under another prompt; replayed rows keep theirs."""
    batch = fresh([BEHAVIOUR, NONE, BEHAVIOUR, NONE], ["fresh", "fresh", "replay", "replay"])
    recipe = recipes.GRPO.replace(old_logprob="recomputed")
    (update,) = recipe.updates(batch)
    (pack,) = update.pack(max_tokens=100)
    old = dict(zip(np.asarray(pack.token).tolist(), pack.streams.old_logprob.tolist(), strict=True))
    by_draw = [old[TOKENS * draw] for draw in range(4)]
    assert by_draw[:3] == [-2.0, -2.0, -1.0]
    assert math.isnan(by_draw[3])
    assert batch.column("old_logprob", "draw").tolist() == [BEHAVIOUR, NONE, BEHAVIOUR, NONE], "what is given stays"
    assert recipe.models == ("policy",)
    assert recipes.GRPO.models == ()
    with pytest.raises(RecipeError, match="old_logprob='none' is not possible"):
        recipes.GRPO.replace(old_logprob="none")


@pytest.mark.parametrize("path", ["packs", "fused"])
def test_metrics_are_reported_per_source(path: str) -> None:
    """All nine tokens are equally likely: now log(1/9), so that ratios are exp(-old) / 9.

    Fresh: behaviour -1, e / 9 on 3 tokens. Replay: recomputed -2, e^2 / 9 on 3 tokens, and a draw without a ratio.
    """
    batch = fresh([BEHAVIOUR, RECOMPUTED, NONE], ["fresh", "replay", "replay"])
    updates = recipes.GRPO.replace(loss=loss.Policy(clip=None)).updates(batch)
    (update,) = updates
    for pack in update.pack(max_tokens=12, layout="tree" if path == "fused" else "sequence"):
        now = torch.full((len(pack.token),), -math.log(9.0))
        hidden = torch.zeros(int(pack.source_row.max()) + 1, 9)
        fused = loss.fused(hidden, torch.zeros(9, 9), pack, update.prepared.loss) if path == "fused" else None
        update.loss(PackOutput(now, torch.zeros_like(now)) if fused is None else fused, pack)
    metrics = updates.metrics
    assert metrics["ratio@fresh"] == pytest.approx(math.e / 9)
    assert metrics["ratio@replay"] == pytest.approx(math.e**2 / 9)
    assert metrics["ratio"] == pytest.approx((math.e + math.e**2) / 18)
    assert (metrics["tokens"], metrics["tokens@fresh"], metrics["tokens@replay"]) == (9.0, 3.0, 6.0)
    assert not {name for name in metrics if name.endswith(("@expert", "@failed", "@imagined"))}


def test_a_batch_of_one_source_has_plain_metrics() -> None:
    updates = recipes.GRPO.updates(grow([BEHAVIOUR, NONE]))
    for update in updates:
        for pack in update.pack(max_tokens=100):
            assert "source" not in pack.streams
            update.loss(PackOutput(torch.full((len(pack.token),), -1.5), torch.zeros(len(pack.token))), pack)
    assert not [name for name in updates.metrics if "@" in name]


def test_the_error_for_missing_recomputed_log_probs_names_the_call_to_add() -> None:
    batch = grow([BEHAVIOUR, RECOMPUTED], recomputed=False)
    with pytest.raises(InvalidInputError, match=r"arl\.annotate\(batch, 'recomputed_logprob', policy\)"):
        recipes.GRPO.updates(batch)


def test_an_unknown_log_prob_is_still_refused_where_a_row_has_one() -> None:
    batch = grow([RECOMPUTED, NONE])
    column = batch.column("recomputed_logprob", "token")
    column[1] = np.nan
    update = next(iter(recipes.GRPO.updates(batch.with_columns("token", recomputed_logprob=column))))
    with pytest.raises(InvalidInputError, match="column 'recomputed_logprob' is nan at trained token 1"):
        list(update.pack(max_tokens=100))
