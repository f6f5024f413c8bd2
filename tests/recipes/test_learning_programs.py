"""Programs that learn from iteration to iteration: experiences, skills and instructions, traced by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from riddles import RIGHT, WRONG, Riddles, check_resumes, rows_of, script, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request, Sampling
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.arise import Skills
from agentrl_core.recipes.inspo import InstructionSearch
from agentrl_core.recipes.training_free import Experiences, operations
from agentrl_core.rollout import Group, TextMemory, read_notes

LOGPROB = {"logprob": lambda paths: [-0.5 * len(path) for path in paths]}


def iterations(recipe: Recipe, speakers: list[Any], folder: Path, **options: Any) -> list[Any]:
    """Return the rows of one iteration after the other, each with its own speaker and collector."""
    size = {"tasks": options.pop("tasks", 1), "group_size": options.pop("group_size", 2)}
    results = []
    for speaker in speakers:
        with arl.Store.open(folder, sync="never") as store:
            recorder = RecordingEngine(script(speaker))
            collect = arl.Collector(recorder, Riddles(), recipe, store=store, task_pool=64, **options)
            batch = collect(**size)
            check_sampled(batch, recorder)
            collect.end_iteration(recipe.credit(batch) if recipe.reward is None else batch, {})
            results.append((rows_of(batch), batch))
    return results


def test_experiences_of_a_group_are_shown_in_the_next_iteration(tmp_path: Path) -> None:
    add = json.dumps({"operation": "ADD", "id": None, "text": "Say right."})

    def first(context: str, request: Request) -> str:
        if "Sum up what it did" in context:
            return "it was right" if "scored 1" in context else "it was wrong"
        if "What did the better attempts do" in context:
            assert "Attempt with score 1:\nit was right" in context
            assert "Attempt with score 0:\nit was wrong" in context
            return "it said right"
        if "How should the list change" in context:
            assert "New insight:\nit said right" in context
            return f"{add} and {add} and {add}"
        if "Make one list" in context:
            assert context.count(add) == 2, "no more than two of a group"
            return f"So: {add}"
        return RIGHT if request.seed % 2 else WRONG

    def second(context: str, request: Request) -> str:
        del request
        return RIGHT if "0: Say right." in context else WRONG

    recipe = recipes.TRAINING_FREE
    for seed in range(20):  # until the group has both outcomes
        (rows, batch), (after, _) = iterations(
            recipe, [first, second], tmp_path / str(seed), seed=seed, sampling=Sampling(max_tokens=512)
        )
        if len({row.actions[0] for row in rows if row.drawn}) == 2:
            break
    assert read_notes(batch, "plan") == [[json.loads(add)]]
    assert sum(row.role == "helper" for row in rows) == 2 + 1 + 1 + 1
    assert [row.prompt for row in after] == ["riddle?\n\nExperiences that may help:\n0: Say right."] * 2
    assert [row.actions for row in after] == [[RIGHT]] * 2
    # A group that is all right or all wrong sends no request.
    assert solve(Experiences(), lambda *_: RIGHT).num_requests == 4


@pytest.mark.parametrize(("solution", "shown"), [((RIGHT,), f"Solution: {RIGHT}\n"), ((), "Solution: not given\n")])
def test_a_group_is_compared_with_the_solution_in_sight(solution: tuple[str, ...], shown: str) -> None:
    answers, is_shown = [RIGHT, WRONG], []

    def speak(context: str, request: Request) -> str:
        del request
        if "Sum up" in context or "What did the better" in context:
            is_shown.append(shown in context)
            return "insight"
        return answers.pop() if answers else "nothing"

    solve(Experiences(), speak, world=Riddles(solution), tasks=1, group_size=2, sampling=Sampling(max_tokens=512))
    assert is_shown == [True] * 3


def test_a_plan_is_applied_by_the_rules() -> None:
    def edit(operation: str, number: int | None, text: str = "") -> dict[str, Any]:
        return {"operation": operation, "id": number, "text": text}

    program = Experiences()
    experiences = ["a", "b", "c"]
    assert program.applied(experiences, [edit("UPDATE", 1, "B"), edit("DELETE", 1, "-"), edit("DELETE", 7, "-")]) == [
        "a",
        "c",
    ]
    assert program.applied(experiences, [edit("DELETE", 1, "-"), edit("UPDATE", 1, "B")]) == ["a", "c", "B"]
    assert program.applied(
        experiences, [edit("UPDATE", 9, "d"), edit("ADD", 0, "e"), edit("ADD", None), edit("DELETE", 0)]
    ) == [
        *experiences,
        "d",
        "e",
    ]
    assert program.applied(experiences, [edit("UPDATE", 0, "A")]) == ["A", "b", "c"]
    assert operations('{"operation": "GROW"} {"operation": "ADD", "id": true, "text": "x"} [1]') == []
    with pytest.raises(InvalidInputError, match="note 'x' cannot be stored"):
        solve(Unkept(), lambda *_: RIGHT, group_size=1)


class Unkept(TextMemory):
    """A component with state that cannot be stored."""

    def initial_state(self) -> dict[str, Any]:
        return {}

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        del closed
        return state

    async def group(self, group: Group) -> None:
        [branch] = await group.run(group.start_many(1))
        self.note(group, "x", float("nan"), branch)


def skilled(context: str, request: Request) -> str:
    """Return a speaker that solves by chance, and always if its prompt has the skill `be right`, which it makes."""
    if "Say in short the skill" in context:
        assert 1 <= context.count(f"An attempt:\n{RIGHT}") <= 2
        assert WRONG not in context
        return "be right"
    return RIGHT if "be right" in context or request.seed % 3 == 0 else WRONG


def test_arise_chooses_a_skill_and_makes_another(tmp_path: Path) -> None:
    program = Skills(warm_up=0, explored=0.0)
    recipe = recipes.ARISE.replace(rollout=program, admit=recipes.GRPO.admit)
    first, second = iterations(recipe, [skilled, skilled], tmp_path, models=LOGPROB, group_size=8)
    rows, batch = first
    assert set(batch.column("success", "draw").tolist()) == {0, 1}
    assert [row.role for row in rows].count("helper") == 2, "who says the skill, and who tries it"
    assert read_notes(batch, "tried") == [["be right", 0.5]]
    assert batch.column("skill_used", "draw").tolist() == [0] * 8
    rows, batch = second
    draws = [row for row in rows if row.drawn]
    assert [row.prompt for row in draws] == ["A skill that may help:\nbe right\n\nriddle?"] * 8
    assert batch.column("skill_used", "draw").tolist() == [1] * 8
    # Solved with a skill: 1 + 1.
    assert batch.column("score", "draw").tolist() == [2.0] * 8
    assert read_notes(batch, "used") == [["be right", 2.0]]
    assert read_notes(batch, "tried") == [], "no rollout is better than the mean"
    warm = recipe.replace(rollout=recipes.ARISE.rollout)
    results = iterations(warm, [skilled, skilled], tmp_path / "warm", models=LOGPROB, group_size=8)
    assert [batch.column("skill_used", "draw").any() for _, batch in results] == [False, False], "only skills are made"


def test_a_library_of_skills_by_hand() -> None:
    program = Skills(cache=2, reservoir=3)
    state = program.initial_state()

    def after(tried: list[Any], *, used: tuple[Any, ...] = ()) -> dict[str, list[tuple[str, float]]]:
        state.update(program.maintained(state, used, tried))
        return {name: [(skill["text"], round(skill["utility"], 3)) for skill in state[name]] for name in state}

    skills = after([["a", 1.0], ["b", 0.5]])
    assert skills == {"cache": [("a", 1.0), ("b", 0.5)], "reservoir": []}
    # c replaces b, which is the weakest.
    assert after([["c", 1.0]], used=(["a", 1.0],)) == {"cache": [("a", 1.0), ("c", 1.0)], "reservoir": [("b", 0.5)]}
    # a did not help: 0.9; still above b. Making it again changes nothing.
    assert after([["a", -1.0]], used=(["a", 0.0],))["cache"] == [("a", 0.9), ("c", 1.0)]
    for _ in range(6):  # 0.478: b comes back
        skills = after([], used=(["a", 0.0],))
    assert dict(skills["cache"]).keys() == {"b", "c"}
    # Above the capacity of the reservoir the lowest is removed.
    skills = after([["d", -1.0], ["e", -0.5], ["f", -0.7]])
    assert dict(skills["reservoir"]).keys() == {"a", "e", "f"}


def test_inspo_draws_an_instruction_and_replaces_the_worse(tmp_path: Path) -> None:
    program = InstructionSearch(begin="be wrong|be right|be so", every=2, least=1, rate=1.0)
    recipe = recipes.INSPO.replace(rollout=program)

    def speak(context: str, request: Request) -> str:
        if "Write a better instruction" in context:
            return "be right indeed"
        del request
        return RIGHT if "be right" in context else WRONG

    results = iterations(recipe, [speak] * 3, tmp_path, tasks=6, group_size=2)
    for rows, batch in results[:1]:
        used = batch.column("instruction", "draw").astype(int).tolist()
        texts = ("be wrong", "be right", "be so")
        assert [row.prompt for row in rows if row.drawn] == [f"{texts[place]}\n\nriddle?" for place in used]
    state = program.initial_state()
    for _, batch in results[:2]:
        before, state = state, program.next(state, IterationRecord.of(batch, iteration=0))
        used = batch.column("instruction", "draw")
        rewards = batch.column("reward", "draw")
        for place in range(3):
            instruction_rewards = rewards[used == place]
            assert state["weights"][place] == (
                instruction_rewards.mean() if len(instruction_rewards) else before["weights"][place]
            )
    # p = softmax(w / 0.1): a weight of 1 against 0 is exp(10) times as likely.
    shares = program.probabilities({"texts": ["a", "b", ""], "weights": [1.0, 0.0, 9.0], "rollouts": [1, 1, 1]})
    np.testing.assert_allclose(shares, [1 / (1 + np.exp(-10)), np.exp(-10) / (1 + np.exp(-10)), 0.0])
    with pytest.raises(RecipeError, match="at least two instructions"):
        InstructionSearch(begin="alone")


def test_candidates_replace_the_worse_half_of_the_instructions() -> None:
    program = InstructionSearch(begin="a|b|c|d", every=1, least=3)
    state = {"texts": ["a", "b", "c", "d"], "weights": [0.5, 0.1, 0.9, 0.1], "rollouts": [3, 3, 3, 2]}
    # d has not been tried enough: one of three is removed, b.
    assert program.worse(state) == [1]
    assert program.worse({**state, "rollouts": [3, 3, 3, 3]}) == [3, 1], "of equal ones the later first"
    assert program.worse({**state, "texts": ["a", "", "c", ""]}) == [], "two stay"
    batch = solve(InstructionSearch(begin="a|b|c|d", every=100), lambda *_: WRONG, group_size=1).batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrl_core.recipes.inspo.read_notes", lambda *_: ["new"])
        after = program.next({**state, "rollouts": [3, 3, 3, 0]}, IterationRecord.of(batch))
    assert after["texts"] == ["a", "new", "c", "d"]
    assert after["rollouts"][1] == 0
    used = int(batch.column("instruction", "draw")[0])
    assert after["weights"][1] == after["weights"][2] == pytest.approx(0.81 if used == 2 else 0.9), "as its parent"


def test_the_policy_tries_candidate_instructions_and_the_better_one_is_kept() -> None:
    proposed = iter(["be wrong", "be right"])

    def speak(context: str, request: Request) -> str:
        del request
        if "Write a better instruction" in context:
            return next(proposed)
        return RIGHT if "be right" in context else WRONG

    # The third place is empty.
    run = solve(InstructionSearch(begin="a|b|", every=1, tries=3), speak, tasks=3, group_size=2)
    assert read_notes(run.batch, "instruction") == ["be right"]
    helpers = [
        row for row in run.rows if row.role == "helper" and "riddle?" in row.prompt and "better" not in row.prompt
    ]
    assert [row.prompt for row in helpers] == ["be wrong\n\nriddle?"] * 3 + ["be right\n\nriddle?"] * 3
    assert not any(row.drawn for row in helpers)


CASES = {
    "training_free": (recipes.TRAINING_FREE, {}),
    "arise": (recipes.ARISE.replace(rollout=Skills(warm_up=0)), {"models": LOGPROB}),
    "inspo": (recipes.INSPO.replace(rollout=InstructionSearch(every=1, least=1)), {}),
}


def speaking(context: str, request: Request) -> str:
    """Return a speaker: solutions by chance, a plan if one is requested, and text."""
    if "JSON" in context:
        return '{"operation": "ADD", "text": "Check."}'
    if "riddle?" not in context or "Sum up" in context or "better" in context or "in short" in context:
        return f"words {request.seed % 5}"
    return RIGHT if request.seed % 2 else WRONG


@pytest.mark.parametrize("name", CASES)
def test_each_recipe_resumes_and_takes_optimizer_steps(name: str) -> None:
    recipe, options = CASES[name]
    assert check_resumes(recipe, speaking, group_size=2, **options) >= 1
    for seed in range(20):
        run = solve(recipe, speaking, tasks=2, group_size=4, seed=seed, **options)
        if np.unique(run.batch.column("score", "draw")).size > 1:
            break
    assert step(recipe, run.batch) >= 1
