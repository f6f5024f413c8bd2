"""Files of games for `env.TextWorld`, which the real package made."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from agentrl_core import env
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

pytest.importorskip("textworld")


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """Two games in folders of their own."""
    folder = tmp_path_factory.mktemp("games")
    with_seed = env.TextWorld("coin_collector", {"level": 1}, folder=folder / "made")
    for task in with_seed.tasks(2):
        with_seed.reset(task, 0).close()
    for number, made in enumerate(sorted((folder / "made").glob("*/game.z8"))):
        (folder / f"games/{number}").mkdir(parents=True)
        for suffix in (".z8", ".json"):
            shutil.copy(made.with_suffix(suffix), folder / f"games/{number}/coin{suffix}")
    return folder / "games"


def test_a_folder_of_games_is_played(games):
    world = env.TextWorld(files=games)
    first, second = world.tasks(2)
    assert (first.task_id, second.task_id) == ("0/coin.z8/train", "1/coin.z8/train")
    episode = world.reset(first, 0)
    assert "coin" in episode.observation
    outcome = episode.step("<action>take coin</action>")
    assert (outcome.reward, outcome.success, outcome.facts["points"]) == (1.0, True, 1.0)
    episode.close()
    with pytest.raises(InvalidInputError, match="3 tasks of split 'train' asked for and there are 2"):
        world.tasks(3)
    with pytest.raises(InvalidInputError, match="1 tasks of split 'held_out' asked for and there are 0"):
        world.tasks(1, split="held_out")


def test_a_file_for_each_split(games):
    world = env.TextWorld(files={"train": games / "0/coin.z8", "held_out": str(games / "1")})
    assert [task.task_id for task in world.tasks(1)] == ["coin.z8/train"]
    [held_out] = world.tasks(1, split="held_out")
    episode = world.reset(held_out, 0)
    assert episode.observation
    episode.close()


def test_games_of_alfworld_that_cannot_be_solved_are_left_out(tmp_path, monkeypatch):
    for kind, solvable in (("pick_and_place_simple-Mug-None-Desk-1", True), ("look_at_obj-Pen-1", False)):
        folder = tmp_path / kind / "trial_1"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps({"solvable": solvable, "pddl_domain": ""}))
    world = env.TextWorld(files=tmp_path)
    [task] = world.tasks(1)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "fast_downward", None)
        with pytest.raises(MissingDependencyError, match="pip install alfworld"):
            world.reset(task, 0)
    assert task.domain == "pick_and_place_simple"
    with pytest.raises(InvalidInputError, match="there are 1"):
        env.TextWorld(files=tmp_path).tasks(2)


PROBLEM = """
(define (problem mug) (:domain alfred)
  (:objects agent1 - agent loc_bar_1 loc_bar_2 - location table_bar_1 desk_bar_2 - receptacle mug_bar_1 - object
    TableType DeskType - rtype MugType - otype)
  (:init (= (total-cost) 0) (atLocation agent1 loc_bar_1) (receptacleAtLocation table_bar_1 loc_bar_1)
    (receptacleAtLocation desk_bar_2 loc_bar_2) (objectAtLocation mug_bar_1 loc_bar_1)
    (inReceptacle mug_bar_1 table_bar_1) (receptacleType table_bar_1 TableType) (receptacleType desk_bar_2 DeskType)
    (canContain DeskType MugType) (canContain TableType MugType) (objectType mug_bar_1 MugType) (pickupable mug_bar_1))
  (:goal (and (exists (?r - receptacle) (exists (?o - object)
    (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r DeskType))))))
  (:metric minimize (total-cost)))
"""


def test_a_game_of_alfworld_is_played(tmp_path):
    pytest.importorskip("fast_downward", reason="it is compiled when it is installed")
    data = Path(pytest.importorskip("alfworld").__path__[0]) / "data"
    folder = tmp_path / "pick_and_place_simple-Mug-None-Desk-1" / "trial_1"
    folder.mkdir(parents=True)
    grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put a mug on a desk")
    game = {"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": PROBLEM}
    (folder / "game.tw-pddl").write_text(json.dumps({**game, "solvable": True}))
    world = env.TextWorld(files=tmp_path)
    episode = world.reset(world.tasks(1)[0], 0)
    assert episode.observation.endswith("Your task is to: put a mug on a desk.")
    begun = episode.state_key()
    assert episode.step("dance").flags == env.StepFlag.FORMAT_ERROR
    assert episode.state_key() == begun
    for command in ("take mug 1 from table 1", "go to desk 1"):
        outcome = episode.step(f"<action>{command}</action>")
        assert (outcome.reward, outcome.flags, outcome.terminated) == (0.0, 0, False)
    outcome = episode.step("move mug 1 to desk 1")
    assert (outcome.reward, outcome.success, outcome.facts["points"]) == (1.0, True, 1.0)
    episode.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "gone.z8", r"gone\.z8' is neither a game"),
        (lambda folder: folder, "has no game"),
        (lambda folder: _written(folder / "a.txt"), "is neither a game"),
        (lambda folder: _written(folder / "a.z8"), r"has no a\.json beside it"),
        (lambda folder: {"test": folder}, "give a path, or a table with a path for train"),
        (lambda _: {}, "give a path, or a table with a path for train"),
    ],
)
def test_what_is_no_game_is_refused(make, message, tmp_path):
    with pytest.raises(InvalidInputError, match=message):
        env.TextWorld(files=make(tmp_path))


def _written(path):
    path.write_text("x")
    return path


def test_settings_are_of_games_that_are_made(games):
    with pytest.raises(InvalidInputError, match="both files and settings are given"):
        env.TextWorld(settings={"level": 1}, files=games)
    world = env.TextWorld(files=games)
    other = env.TextWorld("coin_collector", {"level": 1})
    with pytest.raises(InvalidInputError, match="is not of this TextWorld"):
        world.reset(other.tasks(1)[0], 0)
    other.close()
