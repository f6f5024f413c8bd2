"""Recipe: a value that converts to and from TOML, is checked before it runs, and adds credit as columns."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from agentrl_core import Batch, Recipe, advantage, loss, recipes, rollout, select
from agentrl_core.component import BatchComponent, Column, IterationRecord, StatefulComponent, column_name, draw
from agentrl_core.component.column import Level
from agentrl_core.exceptions import InvalidInputError, RecipeError


@dataclass(frozen=True)
class Judged(BatchComponent):
    """A user's weight that needs a column without a producer."""

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)

    column: str = column_name("judge", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        return batch.with_columns("draw", weight=batch.column(self.column, "draw"))


@dataclass(frozen=True)
class Visits(StatefulComponent):
    """A weight that counts its batches."""

    phase: ClassVar[str] = "weight"

    def initial_state(self) -> dict[str, Any]:
        return {"batches": 0}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        return batch.with_columns("draw", visits=np.full(batch.num_draws, state["batches"]))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        return {"batches": state["batches"] + int(closed.batch.column("visits", "draw")[0] == state["batches"])}


VARIANTS = {
    **{name: recipes.get(name) for name in recipes.names()},
    "odd": recipes.GRPO.replace(
        name='a "quoted"\\name\n\x7f\u00e9',
        admit=select.DynamicSampling(max_rounds=2),
        rollout=rollout.EntropyBranching(reduce="mean", entropy_weight=1e-7),
        loss=loss.Policy(clip=None, kl=loss.KL(0.25), aggregate="constant", constant=3),
        epochs=2,
        minibatches=4,
        shared="split",
    ),
    "collect only": Recipe(name="collect only"),
    "chain": recipes.GRPO.replace(
        advantage=(advantage.GroupRelative(center="leave_one_out", scale="none"), advantage.GroupRelative(eps=0.5))
    ),
}


@pytest.mark.parametrize("recipe", VARIANTS.values(), ids=VARIANTS)
def test_round_trips(recipe: Recipe, tmp_path: Path) -> None:
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.from_toml(path) == Recipe.from_toml(str(path)) == recipe
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(recipe.replace())


def test_names_are_the_files_and_the_values() -> None:
    for name in ("arpo", "gigpo", "grpo", "rloo"):
        recipe = recipes.get(name)
        assert recipe.name == name
        assert recipe is getattr(recipes, name.upper())
        assert recipe.source
        recipe.check()
    with pytest.raises(
        RecipeError, match=r"there is no recipe 'zzzzzzzz'; use one of: .*arpo, .*gigpo, .*grpo, .*rloo"
    ):
        recipes.get("zzzzzzzz")
    with pytest.raises(RecipeError, match=r"there is no recipe 'gigppo'; did you mean gigpo"):
        recipes.get("gigppo")
    with pytest.raises(AttributeError, match="NOPE"):
        _ = recipes.NOPE


def test_recipes_load_without_torch() -> None:
    code = (
        "import sys; from agentrl_core import recipes; recipes.get('arpo').check(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("iteration", ["a", 1.5, True, -1, None])
def test_an_iteration_is_a_whole_number(iteration: object) -> None:
    with pytest.raises(InvalidInputError, match=f"iteration={iteration!r} is not possible; give a whole number"):
        recipes.GRPO.at(iteration)


@pytest.mark.parametrize("method", ["credit", "updates"])
def test_a_value_that_is_not_a_batch_is_refused(method: str) -> None:
    with pytest.raises(InvalidInputError, match="batch is int; give a Batch"):
        getattr(recipes.GRPO, method)(3)


def test_replace() -> None:
    recipe = recipes.GRPO.replace(rollout=rollout.EntropyBranching(), epochs=3)
    assert recipe.rollout == rollout.EntropyBranching()
    assert recipe.epochs == 3
    assert recipes.GRPO.epochs == 1
    with pytest.raises(RecipeError, match="recipe 'grpo': there is no 'epoch' to replace; did you mean epochs"):
        recipes.GRPO.replace(epoch=3)
    with pytest.raises(RecipeError, match="there is no 'far' to replace; use one of: name, source, select"):
        recipes.GRPO.replace(far=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "recipe 'grpo': epochs=0 is not possible; give a whole number of at least 1"),
        ({"minibatches": 1.5}, "minibatches=1.5"),
        ({"shared": "all"}, "shared='all' is not possible; give one of 'each', 'split', 'owner'"),
        ({"name": ""}, "name='' is not possible"),
        (
            {"advantage": loss.Policy()},
            r"Policy\(.*\) is not a component of phase advantage, but of phase loss; move it there",
        ),
        (
            {"loss": loss.Clip(0.2)},
            r"Clip\(.*\) is not a component of phase loss; give one of agentrl_core\.loss, or set phase = 'loss' in",
        ),
        ({"loss": "policy"}, "'policy' is not a component of phase loss"),
        ({"rollout": rollout.EntropyBranching}, "is not a component of phase rollout"),
    ],
)
def test_impossible_options(change: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipes.GRPO.replace(**change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "is not valid TOML"),
        ('source = "x"', "recipe: the name is missing"),
        ('name = "x"\nepoch = 1', "recipe 'x': 'epoch' is unknown; did you mean epochs"),
        ('name = "x"\nfar = 1', "recipe 'x': 'far' is unknown; use one of: name, source"),
        ("epoch = 1", "recipe: 'epoch' is unknown; did you mean epochs"),
        ('[loss]\ncomponent = "Polcy"', "recipe: loss: component 'Polcy' does not exist; did you mean Policy"),
        ('name = "x"\nloss = "Policy"', r"recipe 'x': loss='Policy' is not a table; write \[loss\] with component"),
        ('name = "x"\n[loss]\ncomponent = "Policey"', "recipe 'x': loss: component 'Policey' does not exist"),
        ('name = "x"\n[loss]\ncomponent = "Policy"\nentropy = -1', r"recipe 'x': loss\.Policy: option entropy=-1\.0"),
        ('name = "x"\n[reply]\ncomponent = "Any"', "recipe 'x': 'reply' is unknown; did you mean replay"),
        ('name = "x"\n[admit]\ncomponent = "Uniform"', "Uniform.* is not a component of phase admit"),
    ],
)
def test_bad_documents(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_toml(text)


@pytest.mark.parametrize("source", [3, None, b"name = 'x'", []])
def test_a_source_that_is_not_a_document_is_refused(source: object) -> None:
    with pytest.raises(RecipeError, match="is not a recipe; give the text of a TOML document, or its path"):
        Recipe.from_toml(source)


def test_a_value_that_is_not_a_table_is_refused() -> None:
    with pytest.raises(RecipeError, match="is not a recipe; give a table made by to_dict"):
        Recipe.from_dict([])


@pytest.mark.parametrize("phase", ["select", "rollout", "admit"])
def test_a_phase_of_one_component_takes_no_chain(phase: str) -> None:
    link = getattr(recipes.GRPO, phase)
    for chain in ((link,), (link, link), ()):
        with pytest.raises(RecipeError, match=f"phase {phase} takes one component, not a chain"):
            recipes.GRPO.replace(**{phase: chain})


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        Recipe.from_toml("nowhere.toml")


@pytest.mark.parametrize("phase", ["select", "rollout", "reward", "admit", "advantage", "loss"])
def test_check_names_the_phase_without_a_component(phase: str) -> None:
    recipe = recipes.GRPO.replace(**{phase: None})
    with pytest.raises(
        RecipeError, match=rf"recipe 'grpo': phase {phase} has no component; add one .*replace\({phase}="
    ):
        recipe.check()


def test_check_names_the_column_and_the_call(batch: Batch) -> None:
    recipe = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1)))
    recipe.check()  # without a batch: it will be annotated
    with pytest.raises(
        RecipeError,
        match=r"recipe 'grpo': loss\.Policy \(phase loss\) needs column 'reference_logprob' at level token; "
        r"compute it with a model: batch = arl\.annotate\(batch, 'reference_logprob', reference\)",
    ):
        recipe.check(batch)
    recipe.check(batch.with_columns("token", reference_logprob=np.zeros(len(batch.column("token", "token")))))

    judged = recipes.GRPO.replace(weight=Judged())
    with pytest.raises(
        RecipeError, match=r"Judged \(phase weight\) needs column 'judge' at level draw; add a component"
    ):
        judged.check()
    judged.check(batch.with_columns("draw", judge=np.ones(batch.num_draws)))


def test_credit_is_new_columns(batch: Batch) -> None:
    credited = recipes.GRPO.credit(batch)
    assert not batch.has("advantage", "draw")
    scores = batch.column("reward", "draw")
    expected = advantage.group_relative(scores, batch.keys("group_id", "draw"), valid=np.isfinite(scores))
    np.testing.assert_array_equal(credited.column("advantage", "draw"), expected)
    np.testing.assert_array_equal(credited.column("score", "draw"), scores)
    assert np.isnan(scores).sum() == 1
    assert credited.column("advantage", "draw")[np.isnan(scores)] == 0
    assert np.abs(expected).max() > 0.5


def test_credit_keeps_a_score_that_is_there(batch: Batch) -> None:
    scored = batch.with_columns("draw", score=np.arange(batch.num_draws, dtype=np.float32))
    credited = recipes.RLOO.credit(scored)
    np.testing.assert_array_equal(credited.column("score", "draw"), np.arange(batch.num_draws))
    assert np.isfinite(credited.column("advantage", "draw")).all()


def test_credit_needs_no_loss(batch: Batch) -> None:
    assert recipes.GRPO.replace(loss=None).credit(batch).has("advantage", "draw")
    with pytest.raises(RecipeError, match="phase advantage has no component"):
        recipes.GRPO.replace(advantage=None).credit(batch)


def test_credit_of_gigpo_is_per_step(batch: Batch) -> None:
    credited = recipes.GIGPO.credit(batch)
    steps = np.diff(batch.offsets("step"))
    draws = np.repeat(np.arange(batch.num_draws), steps)
    scores = batch.column("reward", "draw")
    expected = advantage.gigpo(
        np.repeat(scores, steps),
        batch.keys("group_id", "step"),
        draws,
        batch.column("step", "step"),
        batch.keys("state_key", "step"),
        np.nan_to_num(batch.column("reward", "step")),
        voter="trajectory",
        valid=np.isfinite(scores)[draws],
    )
    advantages = credited.column("advantage", "step")
    np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-6)
    within = [np.ptp(advantages[draws == draw]) for draw in range(batch.num_draws) if np.isfinite(scores[draw])]
    assert max(within) > 0.1


def test_weight_multiplies_the_advantage_only(batch: Batch) -> None:
    recipe = recipes.GRPO.replace(weight=Judged())
    judged = batch.with_columns("draw", judge=np.full(batch.num_draws, 2.0))
    plain = next(next(iter(recipes.GRPO.updates(recipes.GRPO.credit(batch)))).pack(max_tokens=999))
    double = next(next(iter(recipe.updates(recipe.credit(judged)))).pack(max_tokens=999))
    for name, values in plain.streams.items():
        factor = 2.0 if name.startswith("advantage") else 1.0
        np.testing.assert_allclose(double.streams[name], factor * values, rtol=1e-6)


def test_a_chain_runs_in_order_and_links_read_earlier_columns(batch: Batch) -> None:
    first, second = advantage.GroupRelative(center="leave_one_out", scale="none"), advantage.GroupRelative()
    np.testing.assert_array_equal(
        recipes.GRPO.replace(advantage=(first, second)).credit(batch).column("advantage", "draw"),
        recipes.GRPO.replace(advantage=second).credit(batch).column("advantage", "draw"),
    )
    recipe = recipes.GRPO.replace(weight=(Judged(), Judged(column="weight")))
    recipe.check(batch.with_columns("draw", judge=np.ones(batch.num_draws)))
    with pytest.raises(RecipeError, match="needs column 'judge'"):
        recipe.check(batch)


def test_a_chain_of_one_is_the_link_and_of_none_is_nothing() -> None:
    assert recipes.GRPO.replace(weight=(Judged(),)) == recipes.GRPO.replace(weight=Judged())
    assert recipes.GRPO.replace(weight=()).weight is None
    with pytest.raises(RecipeError, match="is not a component of phase weight"):
        recipes.GRPO.replace(weight=(Judged(), advantage.GroupRelative()))


def test_components_of_the_reward_are_the_environments() -> None:
    recipe = recipes.GRPO.replace(advantage=advantage.GroupRelative(column="reward.format"))
    recipe.check()
    with pytest.raises(RecipeError, match="needs column 'judged'"):
        recipes.GRPO.replace(advantage=advantage.GroupRelative(column="judged")).check()


def test_component_state_is_passed_from_batch_to_batch(batch: Batch) -> None:
    recipe = recipes.GRPO.replace(weight=(Visits(),))
    once = recipe.credit(batch)
    state = recipe.next_states({}, IterationRecord.of(once))
    twice = recipe.credit(batch.with_state(state))
    assert (once.state, state) == ({}, {"weight[0].Visits": {"batches": 1}})
    assert recipe.next_states(state, IterationRecord.of(twice)) == {"weight[0].Visits": {"batches": 2}}
    assert (once.column("visits", "draw") == 0).all()
    assert (twice.column("visits", "draw") == 1).all()
    assert pickle.loads(pickle.dumps(twice)).state == twice.select_draws([0]).state == state


def test_tokens_that_are_not_kept_are_in_no_denominator(batch: Batch) -> None:
    credited = recipes.GRPO.credit(batch)
    keep = np.arange(len(credited.column("token", "token"))) % 3 > 0
    cut = credited.with_columns("token", keep=keep.astype(np.uint8))
    (pack,) = next(iter(recipes.GRPO.updates(cut))).pack(max_tokens=999)
    (uncut,) = next(iter(recipes.GRPO.updates(credited))).pack(max_tokens=999)
    weights = pack.streams["weight_kl"]
    assert 0 < int((weights > 0).sum()) < int((uncut.streams["weight_kl"] > 0).sum())
    np.testing.assert_allclose([float(weights.sum()), float(uncut.streams["weight_kl"].sum())], 1.0, rtol=1e-6)


def test_two_advantages_of_one_token(batch: Batch) -> None:
    credited = recipes.GRPO.credit(batch)
    advantages = credited.column("advantage", "token")
    pair = credited.with_columns(
        "token", advantage_positive=advantages.clip(0) + 1.0, advantage_negative=advantages.clip(max=0) - 2.0
    ).with_columns("draw", weight=np.full(batch.num_draws, -1.0))
    (pack,) = next(iter(recipes.GRPO.updates(pair))).pack(max_tokens=999)
    (plain,) = next(iter(recipes.GRPO.updates(credited))).pack(max_tokens=999)
    weight = plain.streams["weight_kl"]
    # A negative factor turns the gain into a loss and the loss into a gain.
    positive, negative = plain.streams["advantage_positive"], plain.streams["advantage_negative"]
    np.testing.assert_allclose(pack.streams["advantage_positive"], 2.0 * weight - negative, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(pack.streams["advantage_negative"], -weight - positive, rtol=1e-5, atol=1e-7)


def test_fields_are_documented() -> None:
    assert all(f"{field.name}:" in Recipe.__doc__ for field in fields(Recipe))


FACTS = {
    "draw": ("reward", "success", "group_id", "trajectory_id", "episode_id", "agent", "task_id", "status", "iteration"),
    "step": ("reward", "step", "terminated", "flags", "origin_trajectory_id", "state_key", "tool_error", "agent"),
    "token": ("token", "behaviour_logprob", "entropy", "trainable", "inverse_temperature", "node_token", "reward"),
}


@pytest.mark.parametrize(("level", "name"), [(level, name) for level, names in FACTS.items() for name in names])
def test_facts_need_no_component(batch: Batch, level: Level, name: str) -> None:
    assert Column(level, name).is_fact
    assert batch.has(name, level) or name == "tool_error" or len(batch.keys(name, level))


@pytest.mark.parametrize("name", ["score", "advantage", "reference_logprob", "value", "nothing"])
def test_computed_columns_are_not_facts(name: str) -> None:
    assert not any(Column(level, name).is_fact for level in ("draw", "step", "token"))
