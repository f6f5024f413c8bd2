"""ScienceWorld on the real package, if Java is installed."""

import pickle
import shutil

import pytest

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import InvalidInputError

pytest.importorskip("scienceworld")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="ScienceWorld needs Java, which is not installed")


@pytest.fixture
def world():
    world = env.ScienceWorld(["find-plant", "boil"], simplifications="easy", max_turns=6)
    yield world
    world.close()
    world.close()


@pytest.mark.slow
def test_the_protocol_is_kept(world):
    actions = ["look around", "frobnicate", "open door to kitchen", "go to kitchen", "focus on agent"]
    report = env.check(world, tasks=2, actions=actions)
    assert (report.tasks, report.ended, report.hints) == (2, 2, ())


@pytest.mark.slow
def test_an_episode(world):
    first, second, third = world.tasks(3)
    assert [task.task_id for task in (first, second, third)] == [
        "find-plant/train/0",
        "boil/train/0",
        "find-plant/train/1",
    ]
    held_out = world.tasks(20, split="held_out")
    assert not {str(task.payload) for task in held_out} & {str(task.payload) for task in world.tasks(164)}
    assert world.tasks(1, start=164) == [first], "training goes round"
    with pytest.raises(InvalidInputError, match="held_out"):
        world.tasks(1000, split="held_out")

    episode = world.reset(first, 0)
    assert episode.observation.startswith("Your task is to find a(n) plant.")
    assert "In your inventory" in episode.observation
    before = episode.state_key()
    outcome = episode.step("frobnicate")
    assert (outcome.flags, outcome.observation) == (StepFlag.FORMAT_ERROR, "No known action matches that input.")
    assert episode.state_key() == before
    outcome = episode.step("I walk. <action>go to greenhouse</action>")
    assert outcome.flags == 0
    assert episode.state_key() != before
    assert outcome.facts["admissible"] > 10
    outcome = episode.step("focus on air")
    assert (outcome.terminated, outcome.success) == (True, False)
    assert outcome.reward < 0
    assert outcome.facts["points"] == -1.0
    episode.close()
    episode.close()
    assert len(world._simulators) == 1, "the next episode takes the same simulator over"
    again = world.reset(second, 0)
    assert len(world._simulators) == 1
    assert "boil water" in again.observation
    again.close()

    copy = pickle.loads(pickle.dumps(world))
    assert copy.tasks(3) == [first, second, third]
    copy.close()
    with pytest.raises(InvalidInputError, match="'x' is not of this ScienceWorld"):
        world.reset(env.Task("x", "?", "x", None), 0)


def test_wrong_arguments():
    with pytest.raises(InvalidInputError, match="tasks has 'cook', which does not exist; "):
        env.ScienceWorld(["cook"])
    with pytest.raises(InvalidInputError, match="tasks is 'boil'"):
        env.ScienceWorld("boil")
    with pytest.raises(InvalidInputError, match="max_turns is 0"):
        env.ScienceWorld(max_turns=0)
    with pytest.raises(InvalidInputError, match="simplifications has 'simple'; use some of"):
        env.ScienceWorld(["boil"], simplifications="simple")
