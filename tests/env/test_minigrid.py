"""MiniGrid and BabyAI in text, on the real package."""

import io
import re

import numpy as np
import pytest
from PIL import Image as Picture

from agentrl_core import env
from agentrl_core.env.minigrid import describe
from agentrl_core.exceptions import InvalidInputError

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle", "fly"]


@pytest.mark.parametrize("name", ["BabyAI-GoToRedBall-v0", "MiniGrid-DoorKey-5x5-v0", "BabyAI-BossLevel-v0"])
def test_the_protocol_is_kept(name):
    assert env.check(env.MiniGrid(name, max_turns=7), actions=ACTIONS).ended == 3


def test_described_objects_are_at_their_described_places():
    """Each named object lies on the grid at its described place, seen from the agent."""
    named = 0
    for seed in range(30):
        game = gymnasium.make("BabyAI-GoToRedBall-v0", disable_env_checker=True)
        observation, _ = game.reset(seed=seed)
        world = game.unwrapped
        right = (-world.dir_vec[1], world.dir_vec[0])
        for thing, ahead, aside, side in re.findall(
            r"a (\w+ \w+) (?:(\d+) ahead)?(?:, )?(?:(\d+) (left|right))?[;.]", describe(world, observation)
        ):
            forward, across = int(ahead or 0), int(aside or 0) * (1 if side == "right" else -1)
            column, row = (
                world.agent_pos[axis] + forward * world.dir_vec[axis] + across * right[axis] for axis in (0, 1)
            )
            cell = world.grid.get(column, row)
            assert f"{cell.color} {cell.type}" == thing
            named += 1
    assert named > 30


def test_a_door_is_opened_with_its_key():
    world = env.MiniGrid("MiniGrid-DoorKey-5x5-v0", max_turns=200)
    episode = world.reset(world.tasks(1)[0], 0)
    assert "use the key to open the door" in episode.observation
    grid = episode._game._environment.unwrapped

    def face(target):
        """Walk to the cell before the target, by the shortest way, and turn to it."""
        steps = {(1, 0): 0, (0, 1): 1, (-1, 0): 2, (0, -1): 3}
        begin = tuple(map(int, grid.agent_pos))
        ways, queue = {begin: []}, [begin]
        for here in queue:
            for step, direction in steps.items():
                there = (here[0] + step[0], here[1] + step[1])
                if there == target:
                    yield from _turn_and_go([*ways[here], direction])
                    return
                cell = grid.grid.get(*there)
                if there not in ways and (cell is None or cell.can_overlap()):
                    ways[there] = [*ways[here], direction]
                    queue.append(there)

    def _turn_and_go(directions):
        for number, direction in enumerate(directions):
            while grid.agent_dir != direction:
                yield "turn right"
            if number + 1 < len(directions):
                yield "go forward"

    def place(kind):
        return next(
            (column, row)
            for column in range(grid.width)
            for row in range(grid.height)
            if (cell := grid.grid.get(column, row)) is not None and cell.type == kind
        )

    for action in face(place("key")):
        episode.step(action)
    assert episode.step("pick up").observation.endswith("You carry a yellow key.")
    for action in face(place("door")):
        outcome = episode.step(action)
    assert "a locked yellow door 1 ahead" in outcome.observation
    assert "a open yellow door 1 ahead" in episode.step("toggle").observation
    for action in face(place("goal")):
        outcome = episode.step(action)
    outcome = episode.step("go forward")
    assert (outcome.terminated, outcome.success) == (True, True)
    assert 0 < outcome.reward < 1


def test_an_environment_without_a_mission_is_refused():
    with pytest.raises(InvalidInputError, match="has no mission"):
        env.MiniGrid("FrozenLake-v1")
    with pytest.raises(InvalidInputError, match="'MiniGrid-Nowhere-v0' is refused"):
        env.MiniGrid("MiniGrid-Nowhere-v0")


def pixels_of(image):
    return np.asarray(Picture.open(io.BytesIO(image.content)))


def test_images_keep_the_protocol():
    world = env.MiniGrid("BabyAI-GoToRedBall-v0", observation="image", max_turns=5)
    assert env.check(world, actions=ACTIONS).ended == 3
    with pytest.raises(InvalidInputError, match="observation is 'picture'"):
        env.MiniGrid("BabyAI-GoToRedBall-v0", observation="picture")


def test_an_image_shows_the_ball_at_the_place_in_the_text():
    """A red ball is red at its described place, and nowhere else if it is not visible."""
    count = 0
    for task in env.MiniGrid("BabyAI-GoToRedBallGrey-v0").tasks(12):
        text = env.MiniGrid("BabyAI-GoToRedBallGrey-v0").reset(task, 0).observation
        message = env.MiniGrid("BabyAI-GoToRedBallGrey-v0", observation="image").reset(task, 0).observation
        words, image = message["content"]
        assert text.startswith(words)
        pixels = pixels_of(image).astype(int)
        assert pixels.shape == (56, 56, 3)
        red = (pixels[..., 0] > 150) & (pixels[..., 1:].max(-1) < 100)
        red[48:, 24:32] = False  # the agent itself
        place = re.search(r"a red ball (?:(\d+) ahead)?(?:, )?(?:(\d+) (left|right))?[;.]", text)
        assert red.any() == bool(place)
        if place is not None:
            rows, columns = np.nonzero(red)
            ahead, aside = int(place[1] or 0), int(place[2] or 0) * (1 if place[3] == "right" else -1)
            assert (set(rows // 8), set(columns // 8)) == ({6 - ahead}, {3 + aside})
            count += 1
    assert count > 3


def test_an_image_moves_with_the_agent():
    episode = env.MiniGrid("BabyAI-GoToRedBall-v0", observation="image").reset(
        env.MiniGrid("BabyAI-GoToRedBall-v0").tasks(1)[0], 0
    )
    first = episode.observation["content"][-1]
    turned = episode.step("turn left").observation["content"]
    assert len(turned) == 1
    assert not np.array_equal(pixels_of(first), pixels_of(turned[0]))
    assert episode.step("fly").observation.startswith("No action 'fly'.")
