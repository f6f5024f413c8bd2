"""ICPI: imagined values of actions, by hand; the best action is taken, and its outcome is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imagining import first_turn
from riddles import RIGHT, WRONG, Riddles, rows_of, script, solve, step

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.icpi import Imagine, _Transition

LOOK = "look"
PROGRAM = Imagine(actions=(RIGHT, WRONG, LOOK), gamma=0.5, horizon=3, least=0)


def last_line(context: str) -> str:
    """Return the last line of a prompt."""
    return context.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0].splitlines()[-1]


def test_values_by_hand(tmp_path: Path) -> None:
    """Values are unknown at first, so actions tie. After each was taken once, only imagined values decide."""
    questions: list[str] = []

    def imagined(context: str, request: Request) -> str:
        """Return answers: look pays 0.2 and continues, right pays 1, wrong 0.4; the policy looks, then is right."""
        del request
        last = last_line(context)
        questions.append(context)
        if last.endswith("action:"):
            return LOOK if "riddle?" in last else RIGHT
        looks = f"action: {LOOK};" in last
        if last.endswith("done:"):
            return "no" if looks else "yes"
        if last.endswith("reward:"):
            return ("0.2" if "riddle?" in last else "0.1") if looks else "1" if RIGHT in last else "0.4"
        assert last.endswith("next:")
        return "go on"

    def collect(recipe_seed: int) -> list[str]:
        with arl.Store.open(tmp_path / "run", sync="never") as store:
            recipe = recipes.ICPI.replace(rollout=PROGRAM)
            loop = arl.Collector(
                script(imagined), Riddles(), recipe, store=store, seed=recipe_seed, task_pool=8, turn_limit=3
            )
            batch = loop(tasks=8, group_size=2)
            loop.end_iteration(batch, {})
            return [row.actions[0] for row in rows_of(batch) if row.role == "member"]

    first = collect(3)
    assert set(first) == {RIGHT, WRONG, LOOK}, "ties are broken by chance"
    assert not questions, "without a transition nothing is imagined"
    # look: 0.2 + 0.5 * (the policy answers right after `go on`) 1 = 0.7; right: 1; wrong: 0.4.
    assert set(collect(3)) == {RIGHT}
    for predicted, outcome in (("done", ""), ("reward", " 0"), ("next", "")):
        worlds = [text for text in questions if last_line(text) == f"state: riddle?; action: {LOOK}; {predicted}:"]
        assert worlds
        lines = worlds[0].rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0].splitlines()[:-1]
        assert lines
        same_action = [line for line in lines if f"action: {LOOK}; {predicted}:{outcome}" in line]
        assert same_action == lines, "the same action alone"


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        # 1 + 0.5 * 2 + 0.25 * 4, then the horizon of three.
        (
            ["no", "1", "b", "no", "no", "2", "c", "no", "no", "4", "d", "no", "no", "8"],
            3.0,
        ),
        # 1 + 0.5 * -2; the episode ends there.
        (["no", "1", "b", "no", "Yes", "-2"], 0.0),
        # An unreadable answer is requested again, and an action that does not exist is replaced by one that does.
        (["what?", "no", "much", "1", "", "b", "fly", "no", "yes", "2"], 2.0),
        (["no", "1", "b", "fly", "fly", "fly", "yes", "2"], 2.0),
        (["no", "much", "much", "much", "1"], 0.0),
        (["something"], 0.0),
    ],
)
def test_an_imagined_episode(answers: list[str], value: float) -> None:
    values, _ = first_turn(Imagine(actions=("no",), gamma=0.5, horizon=3), answers)
    assert values == pytest.approx([value])


STEPS = st.builds(
    _Transition, st.just("s"), st.sampled_from("ab"), st.sampled_from([0.0, 1.0]), st.booleans(), st.sampled_from("xyz")
)


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=20), st.integers(1, 6))
def test_examples_are_balanced(transitions: list[_Transition], examples: int) -> None:
    numbered = [each._replace(before=str(place)) for place, each in enumerate(transitions)]
    balanced = Imagine(examples=examples).balanced(numbered, lambda each: (each.reward, each.done))
    by_outcome: dict[tuple[float, bool], list[_Transition]] = {}
    for each in numbered:
        by_outcome.setdefault((each.reward, each.done), []).append(each)
    most = min(max(map(len, by_outcome.values()), default=0), examples)
    assert len(balanced) == most * len(by_outcome)
    for outcome, of_outcome in by_outcome.items():
        chosen = [each for each in balanced if (each.reward, each.done) == outcome]
        newest = of_outcome[-examples:]
        assert chosen == [newest[place % len(newest)] for place in range(most)], "the newest of each outcome, repeated"


@given(st.integers(1, 9), st.floats(0, 0.999), st.floats(0, 0.999))
def test_a_piece_is_a_contiguous_part_of_its_episode(length: int, begin: float, end: float) -> None:
    episode = [_Transition(str(place), "a", 0.0, False, "") for place in range(length)]
    piece = Imagine.piece(episode, begin, end)
    first = int(piece[0].before)
    assert list(piece) == episode[first : first + len(piece)]
    assert first == int(begin * length)


def test_pieces_by_hand() -> None:
    episode = [_Transition(str(place), "a", 0.0, False, "") for place in range(4)]
    ends = [(0.0, 0.0), (0.0, 0.99), (0.5, 0.5), (0.75, 0.99)]
    assert ["".join(step.before for step in Imagine.piece(episode, *each)) for each in ends] == ["0", "0123", "23", "3"]


def test_icpi_takes_an_optimizer_step() -> None:
    recipe = recipes.ICPI.replace(rollout=PROGRAM)

    def speak(context: str, request: Request) -> str:
        del request
        last = last_line(context)
        return LOOK if last.endswith("action:") else "yes" if last.endswith("done:") else "1"

    for seed in range(20):
        run = solve(recipe, speak, tasks=4, group_size=4, seed=seed, turn_limit=3)
        if len(set(run.batch.column("score", "draw").tolist())) > 1:
            break
    assert step(recipe, run.batch) >= 1
