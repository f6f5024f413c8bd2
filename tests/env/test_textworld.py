"""TextWorld: games made here by the real package."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import InvalidInputError

pytest.importorskip("textworld")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of games that the tests share."""
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="module")
def world(folder):
    return env.TextWorld("coin_collector", {"level": 2}, folder=folder, max_turns=8)


@pytest.fixture
def episode(world):
    episode = world.reset(world.tasks(1)[0], 0)
    yield episode
    episode.close()


@pytest.mark.slow
def test_the_protocol_is_kept(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    actions = ["look", "save", "go north", "go east", "go south", "go west", "take coin", "frobnicate"]
    report = env.check(world, tasks=2, actions=actions)
    assert (report.tasks, report.ended) == (2, 2)
    assert list(tmp_path.iterdir()) == [], "nothing is written where the user is"


def test_a_game_is_won(episode):
    assert "coin" in episode.observation
    assert "-= " in episode.observation
    seen = {episode.state_key()}
    for direction in ("north", "east", "south", "west"):
        outcome = episode.step(f"Let me try. <action>go {direction}</action>")
        if not outcome.flags:
            break
    assert (outcome.reward, outcome.flags, outcome.success) == (0.0, 0, None)
    assert outcome.facts["command"] == f"go {direction}"
    assert outcome.facts["admissible"] >= 3
    assert episode.state_key() not in seen
    outcome = episode.step("take coin")
    assert (outcome.reward, outcome.terminated, outcome.success, outcome.facts["points"]) == (1.0, True, True, 1.0)
    assert "The End" in outcome.info["end"]
    with pytest.raises(InvalidInputError, match="is over"):
        episode.step("look")


@pytest.mark.parametrize(
    "action", ["", "save", "QUIT", "restart", "frobnicate the coin", "x" * 5000, "💥", "take moon", "\\x", "take \\k"]
)
def test_an_invalid_command_does_not_change_the_state(episode, action):
    before = episode.state_key()
    outcome = episode.step(action)
    assert (outcome.flags, outcome.reward, outcome.terminated) == (StepFlag.FORMAT_ERROR, 0.0, False)
    assert outcome.observation
    assert ">" not in outcome.observation
    assert episode.state_key() == before


def test_the_last_turn_truncates(episode):
    for _ in range(7):
        assert not episode.step("look").truncated
    outcome = episode.step("look")
    assert (outcome.truncated, outcome.terminated, outcome.success) == (True, False, False)


@pytest.mark.slow
def test_another_process_makes_the_same_game(tmp_path, folder, episode):
    """Games from another folder and with other text hashes are equal byte for byte."""
    program = f"""
import sys
from agentrl_core import env
world = env.TextWorld("coin_collector", {{"level": 2}}, folder={str(tmp_path)!r})
episode = world.reset(world.tasks(1)[0], 0)
episode.step("look")
sys.stdout.buffer.write(episode.state_key())
episode.close()
"""
    elsewhere = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout
    episode.step("look")
    assert elsewhere == episode.state_key()
    games = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("game.z8")}
    assert len(games) == 1
    ((name, game),) = games.items()
    assert (folder / name).read_bytes() == game


@pytest.mark.slow
def test_cooking_is_the_same_in_every_process(tmp_path):
    """The package's cooking games change with the hashes of texts; ours do not."""
    games = []
    for number in range(2):
        world = env.TextWorld("cooking", folder=tmp_path / str(number), show_commands=True)
        episode = world.reset(world.tasks(1, split="held_out")[0], 0)
        assert "\n\nCommands: " in episode.observation
        games.append(episode.observation)
        episode.close()
    assert games[0] == games[1]


def test_tasks_are_distinct_and_plain(world):
    tasks = [*world.tasks(50), *world.tasks(50, split="held_out")]
    assert len({task.payload["seed"] for task in tasks}) == 100
    assert {task.payload["split"] for task in tasks} == {"train", "held_out"}


def test_closing_the_environment_deletes_its_temporary_folder():
    world = env.TextWorld("coin_collector", {"level": 1})
    copy = pickle.loads(pickle.dumps(world))
    place = Path(copy._folder)
    assert place.is_dir()
    copy.close()
    del copy
    assert place.is_dir(), "a copy leaves it"
    assert list(place.iterdir()) == []
    world.close()
    world.close()
    assert not place.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "chess"}, "game is 'chess'; give one of coin_collector"),
        ({"settings": {"depth": 1}}, "settings has 'depth'; use some of those of coin_collector: level"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"seed": 5000}, "seed is 5000; give a seed from 0 to 2047"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.TextWorld(**arguments)


def test_settings_that_the_package_refuses_are_reported(tmp_path):
    world = env.TextWorld("coin_collector", {"level": 0}, folder=tmp_path)
    with pytest.raises(
        InvalidInputError, match=r"coin_collector with \{'level': 0\} cannot be generated \(ValueError: Expected"
    ):
        world.reset(world.tasks(1)[0], 0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"], "nothing half-made is left"
    with pytest.raises(InvalidInputError, match="'x' is not of this TextWorld"):
        world.reset(env.Task("x", "?", "x", None), 0)
