"""Hooks between optimizer steps and after them: exact numbers by hand, on real modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import small
from torch import Tensor, nn

from agentrl_core import Batch, Recipe, Schedule, advantage, loss, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipes.rl_100 import RollbackModels
from agentrl_core.recipes.vcpo import ScaleLearningRate
from agentrl_core.schedule import Above, Dual, FreezeModel, RepeatStage, SkipStep, StopTraining, SyncModel
from agentrl_core.schedule.hook import SwapModels


class Model(nn.Module):
    """A model with parameters of two types, a tied one, a buffer of floats and one of counts."""

    def __init__(self, value: float, count: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((3,), value, dtype=dtype))
        self.tied = self.shift
        self.register_buffer("mean", torch.full((2,), 10 * value, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(count))

    def run(self, pack: Any) -> PackOutput:
        logprob = pack.streams.old_logprob + self.shift.sum().float() - self.shift.sum().float().detach()
        return PackOutput(logprob, entropy=-logprob)

    @property
    def numbers(self) -> tuple[list[float], list[float], int]:
        return self.shift.tolist(), self.mean.tolist(), int(self.count)


BATCH = small([(0, [3]), (0, [1]), (1, [1]), (1, [2])], draw_score=[1.0, 0.0, 0.0, 0.3])


def recipe(*actions: Any, **others: Any) -> Recipe:
    result = recipes.GRPO.replace(minibatches=2, hooks=actions or None, **others)
    assert Recipe.from_toml(result.to_toml()) == result
    return result


def train(
    recipe: Recipe, batch: Batch, models: dict[str, Model], look: Callable[[Any], object] = lambda _: None, **after: Any
) -> tuple[Any, Any]:
    """Run one iteration of updates by gradient descent with rate 1."""
    credited = recipe.credit(batch)
    updates = recipe.updates(credited, models=models)
    for update in updates:
        model = models[update.model]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for pack in update.pack(max_tokens=100):
            update.loss(model.run(pack), pack).backward()
        look((update, update.step(optimizer)))
    return updates, recipe.run_hooks(updates, **after)


def credited_at(recipe: Recipe, iteration: int, states: dict[str, Any]) -> Batch:
    """Return the batch with another iteration number."""
    ids = BATCH.column("trajectory_id", "draw")
    none = BATCH.select_draws(np.zeros(0, np.int64))
    batch = none.with_draws(ids, source="fresh", iteration=iteration)
    return recipe.with_states(batch.with_columns("draw", score=BATCH.column("score", "draw")), states)


def iterations(recipe: Recipe, count: int, models: dict[str, Model]) -> Iterator[tuple[Any, Any]]:
    """Train iteration after iteration and close each; return the updates and the outcome of each."""
    states: dict[str, Any] = {}
    for iteration in range(count):
        batch = credited_at(recipe, iteration, states)
        updates, outcome = train(recipe, batch, models)
        yield updates, outcome
        states = recipe.next_states(states, IterationRecord.of(recipe.credit(batch), updates.metrics))


def test_a_reference_follows() -> None:
    models = {"policy": Model(1.0, 7), "reference": Model(0.0, 3)}
    policy = recipe(SyncModel("policy", "reference", every=2))
    outcomes = []
    for _, outcome in iterations(policy, 4, models):
        outcomes.append((outcome.changed, models["reference"].numbers == models["policy"].numbers))
        models["policy"].shift.data += 1.0
    assert outcomes == [((), False), (("reference",), True), ((), False), (("reference",), True)]
    assert int(models["reference"].count) == 7
    assert models["reference"].tied is models["reference"].shift, "in place: what was tied stays tied"


def test_it_follows_softly_every_few_steps_of_the_run() -> None:
    """Two steps per iteration, every third step: steps 3, 6 of six. The rate 0 keeps the policy fixed."""
    models = {"policy": Model(1.0), "reference": Model(0.0)}
    moved = recipe(SyncModel("policy", "reference", mix=0.5, every=3, unit="steps"), ScaleLearningRate(0.0))
    shifts = [models["reference"].shift[0].item() for _ in iterations(moved, 3, models)]
    assert shifts == [0.0, 0.5, 0.75]
    assert models["reference"].mean[0].item() == 7.5


def test_it_counts_the_steps_of_each_iteration_by_themselves() -> None:
    """Two steps per iteration; the second of each, across iterations. The rate 0 keeps the policy fixed."""
    models = {"policy": Model(1.0), "reference": Model(0.0)}
    second = SyncModel("policy", "reference", mix=0.5, once=2, unit="steps_of_iteration")
    shifts = [
        models["reference"].shift[0].item() for _ in iterations(recipe(second, ScaleLearningRate(0.0)), 3, models)
    ]
    assert shifts == [0.5, 0.75, 0.875]


def test_it_begins_at_an_iteration() -> None:
    assert [number for number in range(1, 9) if FreezeModel("critic", since=3, until=7, every=2).is_due(number)] == [
        4,
        6,
    ]
    models = {"policy": Model(1.0)}
    step_counts = [len(list(updates)) for updates, _ in iterations(recipe(FreezeModel("policy", since=2)), 3, models)]
    assert step_counts == [2, 0, 0]


def test_an_average_is_corrected() -> None:
    """decay 0.5: the n-th is the mean of n + 1 terms weighted 1, 0.5, 0.25, ... from the newest."""
    models = {"policy": Model(0.0), "proximal": Model(0.0)}
    averaged = recipe(SyncModel("policy", "proximal", mix=0.5, corrected=True), ScaleLearningRate(0.0))
    terms, agreements = [0.0], []
    running = iterations(averaged, 3, models)
    for value in (2.0, -1.0, 4.0):
        models["policy"].shift.data.fill_(value)
        next(running)
        terms.append(value)
        weights = [0.5**age for age in range(len(terms))][::-1]
        expected = sum(w * t for w, t in zip(weights, terms, strict=True)) / sum(weights)
        agreements.append(models["proximal"].shift[0].item() == pytest.approx(expected, rel=1e-6, abs=1e-6))
    assert agreements == [True, True, True]


def test_an_average_counts_the_steps_of_its_source_alone() -> None:
    """The critic's two steps per iteration move no average of the policy, and the policy's steps none of the critic."""
    targets = {"policy": "proximal", "critic": "target"}
    syncs = [SyncModel(source, target, every=3, unit="steps", own_steps=True) for source, target in targets.items()]
    losses = tuple(loss.Train(loss.Policy(), model=model, minibatches=2) for model in ("critic", "policy"))
    running = recipe(*syncs, *(ScaleLearningRate(0.0, model=model) for model in targets), loss=losses)
    models = {name: Model(0.0) for names in targets.items() for name in names}
    shifts = []
    for round_, _ in enumerate(iterations(running, 4, models), 1):
        shifts.append([models[target].shift[0].item() for target in targets.values()])
        for source in targets:
            models[source].shift.data.fill_(float(round_))
    assert shifts == [[0, 0], [1, 1], [2, 2], [2, 2]], "step 3 is in iteration 2, step 6 in 3"


def test_a_slow_average_of_a_model_in_half_precision_needs_float32() -> None:
    """In bfloat16 a share of 1e-4 of the difference is lost; the average in float32 keeps it, computed in float32."""
    policy = Model(2.0, dtype=torch.bfloat16)
    for dtype, expected in ((torch.float32, 1.0 + 1e-4), (torch.bfloat16, 1.0)):
        models = {"policy": policy, "average": Model(1.0, dtype=dtype)}
        next(iterations(recipe(SyncModel("policy", "average", mix=1e-4), ScaleLearningRate(0.0)), 1, models))
        assert models["average"].shift[0].item() == pytest.approx(expected, rel=1e-7)
        assert models["average"].shift.dtype == dtype


def test_slow_and_fast_steps() -> None:
    """SFPO: the change of the steps is scaled by alpha."""
    models, alone = {"policy": Model(1.0)}, {"policy": Model(1.0)}
    next(iterations(recipe().replace(minibatches=1), 1, alone))
    _, outcome = next(iterations(recipe(SyncModel("begin", "policy", mix=0.75)).replace(minibatches=1), 1, models))
    change = alone["policy"].shift - 1.0
    assert change.abs().max() > 0.05
    torch.testing.assert_close(models["policy"].shift - 1.0, 0.25 * change, rtol=1e-5, atol=1e-7)
    assert outcome.changed == ("policy",)


def test_models_are_exchanged_restarted_and_rolled_back() -> None:
    models = {"policy": Model(1.0, 1), "solver": Model(2.0, 2)}
    before = {name: model.numbers for name, model in models.items()}
    next(iterations(recipe(SwapModels("policy", "solver"), ScaleLearningRate(0.0)), 1, models))
    assert [models[name].numbers for name in ("solver", "policy")] == list(before.values())
    models = {"policy": Model(1.0), "start": Model(-3.0, 9)}
    next(iterations(recipe(SyncModel("start", "policy", when=Above("loss", -10.0))), 1, models))
    assert models["policy"].numbers == models["start"].numbers
    models = {"policy": Model(1.0)}
    for threshold, rolled in ((-10.0, True), (10.0, False)):
        _, outcome = next(iterations(recipe(RollbackModels(when=Above("loss", threshold))), 1, models))
        assert outcome.rolled_back is rolled
        assert (models["policy"].shift.tolist() == [1.0] * 3) is rolled


def test_steps_are_left_out_and_scaled() -> None:
    def moved(*actions: Any) -> list[float]:
        models, shifts = {"policy": Model(0.0)}, []
        train(recipe(*actions), BATCH, models, lambda _: shifts.append(models["policy"].shift[0].item()))
        return shifts

    first, second = moved()
    assert first != 0.0
    # The gradient of the ratio at 1 does not depend on the shift, so each step is unchanged.
    assert moved(SkipStep(once=1)) == pytest.approx([0.0, second - first])
    assert moved(SkipStep(when=Above("loss", -10.0))) == [0.0, 0.0]
    assert moved(SkipStep(when=Above("loss", 10.0))) == [first, second]
    assert moved(ScaleLearningRate(0.5, once=2)) == pytest.approx([first, first + 0.5 * (second - first)])
    assert moved(ScaleLearningRate(Schedule(0.25, 1.0, iterations=5))) == pytest.approx([0.25 * first, 0.25 * second])


def test_the_rate_by_the_effective_sample_size() -> None:
    """Weights 3, 1 of a step's draws: ESS = 16 / 10 of 2, rho 0.8; base 0.9: sqrt(0.8 / 0.9)."""
    rates: list[float] = []
    batch = BATCH.with_columns("draw", importance=[3.0, 1.0, 3.0, 1.0])
    scaled = recipe(ScaleLearningRate(column="importance", base=0.9))
    updates = scaled.updates(scaled.credit(batch))
    for update in updates:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        optimizer.register_step_pre_hook(lambda each, *_: rates.append(each.param_groups[0]["lr"]))
        update.step(optimizer)
        assert optimizer.param_groups[0]["lr"] == 1.0
        weights = batch.column("importance", "draw")[update.draws]
        share = weights.sum() ** 2 / (weights**2).sum() / len(weights)
        assert rates[-1] == pytest.approx(min(1.0, share / 0.9) ** 0.5)
    assert len(rates) == 2
    with pytest.raises(RecipeError, match="needs column 'importance'"):
        scaled.check(scaled.credit(BATCH))


def test_models_are_trained_in_turn() -> None:
    links = (loss.Train(loss.Policy(), model="other"), loss.Policy())
    turns = recipe(FreezeModel("policy", until=3), FreezeModel("other", every=2), loss=links)
    models = {"policy": Model(0.0), "other": Model(0.0)}
    trained_models = [{part.training.model for part in updates._parts} for updates, _ in iterations(turns, 4, models)]
    assert trained_models == [{"other"}, set(), {"policy", "other"}, {"policy"}]


def test_updates_stop_early_and_the_training_too() -> None:
    models, steps = {"policy": Model(0.0)}, []
    stops = recipe(StopTraining(when=Above("loss", -10.0), unit="steps"), epochs=3)
    _, outcome = train(stops, BATCH, models, steps.append)
    assert (len(steps), outcome.stop) == (1, False)
    outcomes = [outcome.stop for _, outcome in iterations(recipe(StopTraining(once=2)), 3, {"policy": Model(0.0)})]
    assert outcomes == [False, True, False]


@pytest.mark.parametrize("every", ["iteration", "step"])
def test_updates_do_not_stop_by_a_divergence_of_an_earlier_iteration(every: Any) -> None:
    """The critic does its two steps first. The policy's first step has loss 0 on average, above -10: it ends both."""
    links = (loss.Train(loss.Policy(), model="other"), loss.Policy())
    stops = recipe(StopTraining(when=Above("loss", -10.0, every=every), unit="steps"), loss=links)
    models = {"policy": Model(0.0), "other": Model(0.0)}
    metrics = [updates.metrics for updates, _ in iterations(stops, 3, models)]
    assert [(each["other.updates"], each["updates"]) for each in metrics] == [(2, 1)] * 3


def test_passes_are_repeated_until_they_are_fine() -> None:
    links = (loss.Policy(), loss.Train(loss.Policy(), stage="fixup", minibatches=1))
    for threshold, passes in ((-10.0, 3), (10.0, 1)):
        fixed = recipe(RepeatStage("fixup", at_most=3, when=Above("loss", threshold)), loss=links)
        steps: list[Any] = []
        updates, _ = train(fixed, BATCH, {"policy": Model(0.0)}, steps.append)
        assert len(steps) == 2 + passes
        assert updates.metrics["fixup.updates"] == passes
        assert updates.metrics["updates"] == 2


def test_a_coefficient_moves_with_every_step() -> None:
    """A dual variable: beta + rate (metric - target) after each of the steps, and the next loss uses it."""
    dual = Dual("loss", target=0.5, rate=2.0, start=1.0, at_least=1e-6, every="step")
    moving = recipe(loss=loss.Policy(drift=loss.KL(dual, "k2")), epochs=2)
    coefficients: list[float] = []
    updates, _ = train(
        moving, BATCH, {"policy": Model(0.0)}, lambda pair: coefficients.append(pair[0].prepared.loss.drift.coefficient)
    )
    losses = updates.metrics["steps"]["loss"]
    expected = [1.0]
    for value in losses:
        expected.append(max(1e-6, expected[-1] + 2.0 * (value - 0.5)))
    assert len(coefficients) == 4
    assert coefficients == pytest.approx(expected[:4])
    states = moving.next_states({}, IterationRecord.of(moving.credit(BATCH), updates.metrics))
    assert states["loss[0].Policy.drift.coefficient"]["value"] == pytest.approx(expected[4]), "and so has the store"


def test_invalid_hooks_and_models_are_reported() -> None:
    moved = recipe(SyncModel("policy", "reference"), ScaleLearningRate(0.0))
    with pytest.raises(InvalidInputError, match=r"SyncModel: model 'reference' was not given \(only policy\)"):
        train(moved, BATCH, {"policy": Model(0.0)})
    models: dict[str, Any] = {"policy": Model(0.0), "reference": nn.Linear(2, 2)}
    with pytest.raises(InvalidInputError, match=r"the source model has shift of \[3\], the target no shift"):
        train(moved, BATCH, models)
    with pytest.raises(InvalidInputError, match=r"model 'reference' is a int; give a torch\.nn\.Module"):
        train(moved, BATCH, {"policy": Model(0.0)}, reference=3)
    late = recipe(SyncModel("begin", "reference"))
    with pytest.raises(InvalidInputError, match="no copy of model 'reference' from the start of the iteration"):
        train(late, BATCH, {"policy": Model(0.0)}, reference=Model(1.0))
    for make, message in (
        (lambda: SyncModel("policy", "policy"), "name another model"),
        (lambda: SyncModel("policy", "begin"), "it is a copy that no hook changes"),
        (
            lambda: SyncModel("policy", "average", corrected=True, once=3),
            "leave out `once` and `when`, and set `every`",
        ),
        (lambda: SyncModel("policy", "average", own_steps=True), "use it with unit='steps'"),
        (lambda: FreezeModel("policy", unit="steps"), "frozen for whole iterations"),
        (lambda: SyncModel("policy", "average", every=0), "option every=0 is not possible"),
        (lambda: recipes.GRPO.replace(hooks=advantage.GroupRelative()), "is not a component of phase hooks"),
    ):
        with pytest.raises(RecipeError, match=message):
            make()


def test_metrics_named_max_keep_the_largest_value() -> None:
    from agentrl_core.update.metrics import Metrics

    metrics = Metrics()
    packs: list[list[tuple[float, float, float]]] = [[(1.0, 4.0, 0.3), (2.0, 2.0, 0.1)], [(6.0, 6.0, 0.2)]]
    for step in packs:
        metrics.begin_update()
        for total, tokens, largest in step:
            common: dict[str, Tensor] = {"loss": torch.tensor(total), "tokens": torch.tensor(tokens)}
            metrics.add({**common, "kl": torch.tensor(total), "max_kl": torch.tensor(largest)})
    # loss (1 + 2 + 6) / 2 updates; kl 9 / 12 tokens
    expected = {"loss": 4.5, "kl": 0.75, "max_kl": 0.3, "tokens": 12.0, "updates": 2.0}
    assert metrics.means() == pytest.approx(expected)
    assert metrics.step() == pytest.approx({"loss": 6.0, "kl": 1.0, "max_kl": 0.2, "tokens": 6.0})
