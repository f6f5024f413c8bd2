"""Recipes on environments that declare facts: refused if one is missing, and run if all are declared."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, IterationRecord, draw, step
from agentrl_core.component.component import PHASES
from agentrl_core.env import ExtraColumn
from agentrl_core.env.base import by_level
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.weight import FlagFilter

NAMES = recipes.names()
MEMBERS = {"rstar2": 32}
"""The number of rollouts of a task, if a recipe needs more than the usual six."""


def needed_columns(recipe: Recipe) -> tuple[list[Column], list[Column]]:
    """Return the columns that the environment has to report, and those that only a model can make."""
    produced: set[str] = set()
    reported, modelled = [], []
    for phase in PHASES:
        for link in recipe.chain(phase):
            # A loss of another stage runs on batches of its own.
            for column in link.needs if getattr(link, "stage", "update") == "update" else ():
                if not column.is_fact and column.name not in produced:
                    (modelled if column.model else reported).append(column)
            produced |= {column.name for column in link.makes}
    return list(dict.fromkeys(reported)), list(dict.fromkeys(modelled))


def declaration(columns: list[Column]) -> dict[str, ExtraColumn]:
    """Return the declaration of an environment for these columns: keys if they are names of answers."""
    levels = {column.name: "step" for column in columns}
    levels |= {column.name: "trajectory" for column in columns if column.level == "draw"}
    kinds = {name: "key" if name.endswith("_cluster") else "number" for name in levels}
    return {name: ExtraColumn(levels[name], kinds[name]) for name in levels}


def collected(facts: dict[str, ExtraColumn], members: int) -> Batch:
    """Return two groups of two-step rollouts, whose environment reports its facts."""
    rng = np.random.default_rng(0)
    forest = Forest(facts=by_level(facts))

    def facts_of(level: str) -> dict[str, float | str]:
        values: dict[str, float | str] = {}
        for name, fact in facts.items():
            if fact.level == level:
                # No item depends on itself, all steps are in one turn, and each group has a greedy answer.
                fixed = {"greedy": 1.0, "turn": 0.0}.get(name, 0.0 if name.startswith("item_needs") else None)
                value = float(rng.integers(0, 2)) if fixed is None else fixed
                values[name] = f"answer {value}" if fact.kind == "key" else value
        return values

    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(members):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, group], kind="prompt")
            for turn in range(2):
                tokens = rng.integers(2, 9, 3)
                numbers = rng.random(3)
                forest.append(trajectory, tokens, kind="action", logprobs=-numbers, entropies=numbers, policy_version=0)
                forest.step(trajectory, reward=float(rng.integers(0, 2)), facts=facts_of("step"))
                forest.append(trajectory, [7], kind="observation", state=f"state {turn}")
            forest.finish(trajectory, reward=float(member % 2), success=bool(member % 2), facts=facts_of("trajectory"))
    return forest.freeze()


def test_facts_that_recipes_need_from_their_environment() -> None:
    names = {name: {column.name for column in needed_columns(recipes.get(name))[0]} for name in NAMES}
    assert names["copo"] == names["seed_grpo"] == {"answer_cluster", "answer_parsed"}
    assert names["dyna_mind"] == {"refined"}
    assert names["rank_grpo"] == {"hit.0"}, "the spans of items are the user's to find"
    assert names["ui_s1"] == {"matched"}
    assert names["a2fm"] == {"reward.mode", "reward.forced", "reward.format"}
    assert "reward.searches_unique" in names["fathom"]
    assert names["recap"] == {"reward.answer", "reward.format"}
    assert names["rstar2"] == {"reward.tool_penalty"}
    assert {"turn", "satisfied.0", "item_needs.7"} <= names["cm2"]
    assert names["grpo"] == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_scores_and_credits_with_the_declared_facts(name: str) -> None:
    recipe = recipes.get(name)
    reported, modelled = needed_columns(recipe)
    facts = declaration(reported)
    recipe.check(facts=by_level(facts))
    # Programs report facts of their own.
    batch = recipe.score(collected({**facts, **recipe.rollout.facts}, MEMBERS.get(name, 6)))
    assert np.isfinite(batch.column("score", "draw")).any()
    for column in recipe.select.makes:
        batch = batch.with_columns("draw", **{column.name: np.full(batch.num_draws, 0.5)})
    for column in modelled:
        values = -np.ones(len(batch.column("trajectory_id", column.level)))
        batch = batch.with_columns(column.level, **{column.name: values})
    batch = recipe.credit(batch)
    if recipe.advantage:  # recipes of teachers have none
        advantages = batch.column("advantage", "token")
        assert np.isfinite(advantages[np.isfinite(batch.column("score", "token"))]).all()
    if recipe.needs_losses:
        batch = batch.with_columns("draw", loss=np.zeros(batch.num_draws))
    recipe.next_states({}, IterationRecord.of(batch))


@pytest.mark.parametrize("name", [name for name in NAMES if needed_columns(recipes.get(name))[0]])
def test_it_is_refused_where_a_fact_is_missing(name: str) -> None:
    recipe = recipes.get(name)
    facts = declaration(needed_columns(recipe)[0])
    for missing in facts:
        rest = by_level({other: fact for other, fact in facts.items() if other != missing})
        message = (
            f"recipe '{name}': .* \\(phase .*\\) needs column '{missing}' at level .*declare it in the environment"
        )
        with pytest.raises(RecipeError, match=message):
            recipe.check(facts=rest)


def test_a_step_fact_does_not_satisfy_a_draw_column() -> None:
    of_draws = Recipe(name="mine", advantage=GroupRelative(column="quality"), loss=loss.Policy())
    assert draw("quality") in of_draws.chain("advantage")[0].needs
    of_draws.check(facts={"trajectory": {"quality": "number"}})
    with pytest.raises(RecipeError, match=r'needs column .quality. at level draw.*ExtraColumn\("trajectory"\)'):
        of_draws.check(facts={"step": {"quality": "number"}})
    of_steps = Recipe(name="mine", advantage=GroupRelative(column="quality", level="step"), loss=loss.Policy())
    assert step("quality") in of_steps.chain("advantage")[0].needs
    for level in ("step", "trajectory"):
        of_steps.check(facts={level: {"quality": "number"}})
    with pytest.raises(
        RecipeError, match=r'or declare it as a fact of the environment: Forest\(facts=\{"step": \{.quality.'
    ):
        of_steps.check()
    with pytest.raises(RecipeError, match="add a component that makes it, or declare it in the environment"):
        of_steps.check(facts={})


def test_check_accepts_facts_that_the_batch_declares() -> None:
    recipe = Recipe(name="mine", advantage=GroupRelative(column="quality"), loss=loss.Policy())
    batch = collected({"quality": ExtraColumn("trajectory")}, 4)
    recipe.check(batch)
    credited = recipe.credit(batch)
    assert np.isfinite(credited.column("advantage", "token")).all()


def test_a_flag_may_be_a_fact() -> None:
    batch = collected({"flawed": ExtraColumn("step")}, 4)
    recipe = Recipe(
        name="mine", advantage=GroupRelative(), weight=FlagFilter(flags="flawed", level="step"), loss=loss.Policy()
    )
    recipe.check(facts={"step": {"flawed": "number"}})
    flawed = batch.column("flawed", "step").reshape(batch.num_draws, 2).any(axis=1)
    assert 0 < flawed.sum() < len(flawed)
    np.testing.assert_array_equal(recipe.credit(batch).column("keep", "draw") == 0, flawed)
