"""Programs that repair a path while it runs: reasons found afterwards, patches, recoveries; and tilted groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, Riddles, check_resumes, in_turn, solve, step

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.env import ExtraColumn, StepFlag, StepResult
from agentrl_core.recipes.a3t import Autonomy
from agentrl_core.recipes.rac import UndoFailedStep
from agentrl_core.recipes.ui_s1 import ExpertSpine

END = "<|im_end|>"


class Doors(Riddles):
    """Riddles that list the possible actions."""

    def reset(self, task: Any, seed: int) -> Any:
        episode = super().reset(task, seed)
        episode.observation = "riddle? Commands: knock; wait"
        answer = episode.step

        def take(action: str) -> StepResult:
            outcome = answer(action)
            more = None if outcome.observation is None else f"{outcome.observation} Commands: knock; {RIGHT}"
            return replace(outcome, observation=more)

        episode.step = take
        return episode


def reasoning(context: str, request: Request) -> str:
    """Return a speaker: reasons on request, otherwise failures."""
    del request
    return "since it is so" if "Why is this the right thing" in context else WRONG


def test_a3t_acts_at_random_and_generates_reasons_for_its_actions() -> None:
    program = Autonomy(column="success", probability=1.0, attempts=2)
    run = solve(program, reasoning, world=Doors(), group_size=2)
    assert [row.actions for row in run.drawn[:2]] == [[WRONG]] * 2
    assert run.fact("composed")[:2] == [0, 0]
    for row, composed in zip(run.drawn[2:], run.fact("composed")[2:], strict=True):
        assert len(row.actions) == composed >= 1
        for action in row.actions:
            reasons, _, command = action.partition("\n")
            assert reasons == "since it is so"
            assert command in ("<action>knock</action>", "<action>wait</action>", f"<action>{RIGHT}</action>")
        assert row.trained == "".join(f"{action}{END}" for action in row.actions), "as if it had been reasoned so"
        assert row.actions[-1].endswith(f"{RIGHT}</action>"), "the only action that ends an episode"
    requests = [row for row in run.rows if row.role == "helper"]
    assert len(requests) == sum(run.fact("composed"))
    assert "Commands: knock; wait\n\nWhy is this the right thing to do now:" in requests[0].text
    assert not np.isfinite(run.batch.column("behaviour_logprob", "token"))[
        run.batch.column("token", "token") == 10
    ].any()
    # A solved task gets no attempts; at probability 0 the policy acts itself.
    assert solve(program, in_turn(WRONG, RIGHT), world=Doors(), group_size=2).num_requests == 2
    plain = solve(Autonomy(column="success", probability=0.0, attempts=2), reasoning, world=Doors(), group_size=2)
    assert [row.actions for row in plain.rows] == [[WRONG]] * 4


class Expert(Riddles):
    """An environment that answers with the expert's next observation and reports who acted like the expert."""

    facts = {"matched": ExtraColumn("step")}  # noqa: RUF012

    def reset(self, task: Any, seed: int) -> Any:
        del seed
        episode = super().reset(task, 0)
        actions: list[str] = []

        def take(action: str) -> StepResult:
            matched = action == task.solution[len(actions)]
            actions.append(action)
            over = len(actions) == len(task.solution)
            observation = None if over else f"page {len(actions)}"
            return StepResult(
                observation, reward=float(matched), terminated=over, success=matched, facts={"matched": matched}
            )

        episode.step = take
        episode.state_key = lambda: repr(actions).encode()
        return episode


def test_ui_s1_continues_from_the_action_of_the_expert_after_a_mistake() -> None:
    world = Expert(("open", "search", "click", "close"))
    contexts: list[str] = []

    def speak(context: str, request: Request) -> str:
        del request
        contexts.append(context.partition("riddle?")[2])
        return ["open", "scroll", "click", "leave"][len(contexts) - 1]

    run = solve(ExpertSpine(), speak, world=world, group_size=1)
    # The mistake stays in the trajectory; the next action reads the expert's action instead.
    assert "<|im_start|>assistant\nopen<|im_end|>" in contexts[1]
    assert "scroll" not in contexts[2]
    assert "search" in contexts[2]
    assert "page 2" in contexts[2]
    [row] = run.drawn
    assert row.trained == "".join(f"{action}{END}" for action in ("open", "scroll", "click", "leave"))
    assert run.batch.column("matched", "step").tolist() == [1, 0, 1, 0]
    assert run.batch.column("reward", "draw").tolist() == [2.0]
    # One patch: the second mistake ends it. None: the first one ends it. Any number: it runs to the end.
    for patches, turns in ((1, 2), (0, 1), (None, 4)):
        run = solve(ExpertSpine(patches=patches), in_turn("leave"), world=world, group_size=1)
        assert len(run.batch.column("matched", "step")) == turns
        assert run.drawn[0].status == "finished"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 1000))
def test_no_more_is_patched_than_may_be(patches: int, seed: int) -> None:
    world = Expert(("a", "b", "a", "b", "a"))
    run = solve(ExpertSpine(patches=patches), lambda _, request: "ab"[request.seed % 2], world=world, seed=seed)
    ends, matched = run.batch.offsets("step"), run.batch.column("matched", "step")
    for first, last in pairwise(ends.tolist()):
        assert (matched[first : last - 1] == 0).sum() <= patches, "a mistake behind the last patch is the last step"


def test_rac_learns_to_recover_and_not_the_mistake() -> None:
    answers = in_turn("ok", "<bad>", WRONG, "look", "look", RIGHT)
    run = solve(UndoFailedStep(column="success", turns=3), answers, group_size=1)
    trunk, fork = run.drawn
    assert trunk.actions == ["ok", "<bad>", WRONG]
    assert fork.actions == ["ok", "<bad>", "<undo>", "look", "look", RIGHT]
    assert trunk.trained == f"ok{END}<bad>{END}{WRONG}{END}"
    assert fork.trained == f"<undo>{END}look{END}look{END}{RIGHT}{END}", "recovery and correction alone"
    assert run.fact("reward") == [0, 1]
    assert run.fact("recovered")[1] == 1
    # A correction has a number of turns; a mistake that ends the episode has nothing after it; successes are kept.
    run = solve(UndoFailedStep(column="success", turns=1), in_turn("<bad>", WRONG, "look"), group_size=1)
    assert [row.actions for row in run.drawn] == [["<bad>", WRONG]], "a correction that failed is dropped"
    assert run.num_requests == 3
    assert solve(UndoFailedStep(column="success"), in_turn("<bad>", RIGHT), group_size=1).num_requests == 2
    assert solve(UndoFailedStep(column="success"), in_turn(WRONG), group_size=1).num_requests == 1


class Refuses(Riddles):
    """An environment that does not support an action, and flags it or takes it for the answer."""

    def __init__(self, unknown: str, outcome: StepResult) -> None:
        super().__init__()
        self.unknown, self.outcome = unknown, outcome

    def reset(self, task: Any, seed: int) -> Any:
        episode = super().reset(task, seed)
        answer = episode.step
        episode.step = lambda action: self.outcome if action == self.unknown else answer(action)
        return episode


@pytest.mark.parametrize(
    "outcome",
    [
        StepResult("what?", flags=StepFlag.FORMAT_ERROR),
        StepResult("no such tool", flags=StepFlag.TOOL_ERROR),
        StepResult(reward=0.0, terminated=True, success=False),
    ],
    ids=["a wrong format", "a wrong call", "an answer"],
)
def test_rac_trains_no_recovery_after_an_undo_that_the_environment_rejects(outcome: StepResult) -> None:
    replies, world = ("ok", "<bad>", WRONG, "look", RIGHT), Refuses("<undo>", outcome)
    with pytest.warns(
        RuntimeWarning, match=r"undo='<undo>' is refused by the environment of domain .* UndoFailedStep\(undo="
    ):
        run = solve(UndoFailedStep(column="success"), in_turn(*replies), group_size=1, world=world)
    assert [row.actions for row in run.drawn] == [["ok", "<bad>", WRONG]]
    assert run.num_requests == 3, "nothing is generated behind it"
    accepted = solve(UndoFailedStep(column="success", undo="back"), in_turn(*replies), group_size=1, world=world)
    assert [row.actions for row in accepted.drawn][1] == ["ok", "<bad>", "back", "look", RIGHT]


def test_aepo_ae_rolls_out_twice_and_turns_the_temperature() -> None:
    recipe = recipes.AEPO_AE
    run = solve(recipe, lambda _, request: RIGHT if request.seed % 2 else WRONG, group_size=3)
    assert run.fact("tilted") == [0] * 3 + [1] * 3
    temperatures = pl.DataFrame(run.batch.nodes)["sampling"].struct.field("temperature").drop_nulls()
    assert sorted(temperatures.cast(pl.Float64).round(3).to_list()) == [1.0] * 3 + [1.2] * 3
    assert (run.batch.column("inverse_temperature", "token") == 1.0).all(), "all is trained at temperature 1"
    # After an entropy above 0.5 the next iteration samples cold, and half as many take a place.
    states = recipe.next_states({}, IterationRecord.of(run.batch, {"entropy": 0.6}))
    cold = recipe.at(1, states)
    assert cold.rollout.members.others.temperature == 0.8
    assert cold.weight.share == 0.5
    warm = recipe.at(1, recipe.next_states({}, IterationRecord.of(run.batch, {"entropy": 0.4})))
    assert (warm.rollout.members.others.temperature, warm.weight.share) == (1.2, 1.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.floats(0, 1), st.integers(0, 1000))
def test_aepo_ae_trains_as_many_as_were_plain(at_most: int, share: float, seed: int) -> None:
    recipe = recipes.AEPO_AE.replace(weight=replace(recipes.AEPO_AE.weight, at_most=at_most, share=share))
    run = solve(recipe, lambda _, request: RIGHT if request.seed % 3 else WRONG, tasks=2, group_size=3, seed=seed)
    batch = recipe.credit(run.batch)
    keep, tilted = batch.column("keep", "draw") != 0, batch.column("tilted", "draw") != 0
    assert keep.sum() == (~tilted).sum()
    assert (keep & tilted).sum() <= int(share * at_most)
    assert (batch.column("advantage", "draw")[keep & tilted] == 1.0).all()


def wandering(context: str, request: Request) -> str:
    """Return a speaker: calls, some of which fail, and finally an answer."""
    if "Why is this" in context:
        return f"since {request.seed % 5}"
    return ["<bad>", "look", RIGHT, WRONG, WRONG][request.seed % 5]


CASES: dict[str, Any] = {
    "a3t": (
        recipes.A3T.replace(rollout=Autonomy(column="success", attempts=2), replay=None),
        wandering,
        {"world": Doors()},
    ),
    "rac": (recipes.RAC.replace(replay=None), wandering, {}),  # its stored recoveries need a store
    "aepo_ae": (recipes.AEPO_AE, lambda _, request: RIGHT if request.seed % 2 else WRONG, {}),
    "ui_s1": (recipes.UI_S1, lambda _, request: "ab"[request.seed % 2], {"world": Expert(("a", "b", "a"))}),
    "dart": (recipes.DART.replace(replay=None), wandering, {}),  # its pool of successes needs a store
}


@pytest.mark.parametrize("name", CASES)
def test_recipes_resume_and_take_an_optimizer_step(name: str) -> None:
    recipe, speak, options = CASES[name]
    assert check_resumes(recipe, speak, turn_limit=6, **options) >= 2
    for seed in range(20):
        batch = solve(recipe, speak, tasks=2, seed=seed, turn_limit=6, **options).batch
        recovered = name != "rac" or (batch.column("recovered", "draw") == 1).any()
        if recovered and np.unique(batch.column("success", "draw")).size > 1:
            break
    tokens = len(batch.column("token", "token"))
    columns = {name: np.full(tokens, -1.0) for name in ("recomputed_logprob",)}
    assert step(recipe, batch.with_columns("token", **columns)) >= 1
