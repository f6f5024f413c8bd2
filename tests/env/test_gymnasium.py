"""Gymnasium in text, on the real package."""

import pickle

import numpy as np
import pytest

from agentrl_core import env
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import InvalidInputError

gymnasium = pytest.importorskip("gymnasium")


def start(world, number=0, seed=0):
    return world.reset(world.tasks(1, start=number)[0], seed)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_the_four_games_keep_the_protocol(name):
    world = env.Gymnasium(name, max_turns=12)
    actions = [*start(world).observation.split("Actions: ")[1].splitlines()[0].split(", "), "nothing"]
    report = env.check(world, actions=actions * 3, steps=12)
    assert report.ended == 3
    assert report.hints == ()
    assert world.runs == "inline"
    assert pickle.loads(pickle.dumps(world)).tasks(3) == world.tasks(3)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_rewards_are_those_of_the_game(name):
    world = env.Gymnasium(name, max_turns=30)
    episode = start(world, seed=5)
    task_seed = world.tasks(1)[0].payload["seed"]
    game = gymnasium.make(name, disable_env_checker=True)
    game.reset(seed=task_seed)
    game.unwrapped.np_random = np.random.default_rng([task_seed, 5])
    total = 0.0
    for number in range(30):
        action = number % game.action_space.n
        _, reward, terminated, truncated, _ = game.step(action)
        total += reward
        outcome = episode.step(world._actions[action])
        assert outcome.reward == reward
        assert outcome.facts == {"points": total, "command": world._actions[action]}
        assert outcome.terminated == terminated
        if terminated or truncated:
            break
    assert outcome.terminated or outcome.truncated


def test_frozen_lake_is_won_on_ice_that_is_not_slippery():
    world = env.Gymnasium(lambda _seed: gymnasium.make("FrozenLake-v1", is_slippery=False))
    episode = start(world)
    assert "The ice is not slippery." in episode.observation
    for move in ("down", "down", "right", "right", "down"):
        outcome = episode.step(f"I go {move}. <action>{move}</action>")
        assert (outcome.reward, outcome.success) == (0.0, None)
    assert outcome.observation.splitlines()[3] == " H F[F]G"
    outcome = episode.step("right")
    assert (outcome.reward, outcome.success, outcome.terminated, outcome.observation) == (1.0, True, True, None)
    assert outcome.info["end"].endswith("H F F[G]")
    with pytest.raises(InvalidInputError, match="is over"):
        episode.step("right")
    drowned = start(world)
    drowned.step("right")
    outcome = drowned.step("down")
    assert (outcome.reward, outcome.success, outcome.terminated) == (0.0, False, True)


def test_cliff_walking_is_solved_at_its_end_though_every_step_costs():
    episode = start(env.Gymnasium("CliffWalking-v1"))
    episode.step("up")
    for _ in range(11):
        assert episode.step("right").reward == -1
    outcome = episode.step("down")
    assert (outcome.success, outcome.facts["points"]) == (True, -13.0)


def test_the_taxi_observation_contains_all_positions():
    world = env.Gymnasium("Taxi-v4")
    for number in range(8):
        game = gymnasium.make("Taxi-v4", disable_env_checker=True)
        observation, _ = game.reset(seed=world.tasks(1, start=number)[0].payload["seed"])
        row, column, passenger, goal = game.unwrapped.decode(observation)
        text = start(world, number).observation
        assert f"You are at row {row}, column {column}." in text
        stops = ("red", "green", "yellow", "blue")
        assert f"waiting at {stops[passenger]} and wants to go to {stops[goal]}" in text


def test_a_task_has_a_fixed_start_and_its_outcomes_depend_on_the_seed():
    world = env.Gymnasium("Blackjack-v1")
    firsts = {start(world, seed=seed).observation for seed in range(8)}
    assert len(firsts) == 1
    hits = {start(world, seed=seed).step("hit").info is None for seed in range(20)}
    assert len({repr(start(world, seed=seed).step("hit")) for seed in range(20)}) > 3
    assert hits
    assert len({start(world, number).observation for number in range(8)}) > 3


def test_splits_and_seeds_share_no_task():
    worlds = [env.Gymnasium("Taxi-v4", seed=seed) for seed in (0, 1)]
    seeds = [t.payload["seed"] for w in worlds for s in ("train", "held_out") for t in w.tasks(100, split=s)]
    assert len(set(seeds)) == 400


def test_a_text_that_is_not_an_action_uses_a_turn():
    episode = start(env.Gymnasium("FrozenLake-v1", max_turns=2))
    outcome = episode.step("swim")
    assert outcome.flags == StepFlag.FORMAT_ERROR
    assert outcome.observation == "No action 'swim'. Actions: left, down, right, up"
    outcome = episode.step("swim")
    assert (outcome.truncated, outcome.terminated, outcome.success, outcome.observation) == (True, False, False, None)


def test_any_discrete_environment_is_shown_as_it_is_unless_described():
    world = env.Gymnasium("CartPole-v1", max_turns=9)
    assert world.runs == "thread"
    assert start(world).observation.startswith("A game: CartPole-v1.\nActions: 0, 1\n\nObservation: [")
    described = env.Gymnasium(
        "CartPole-v1",
        max_turns=4,
        name="pole",
        instruction="Keep the pole up.",
        actions=["left", "right"],
        describe=lambda _game, observation: f"The pole leans {'left' if observation[2] < 0 else 'right'}.",
        solved=lambda score, _last: score > 3,
    )
    assert start(described).observation.startswith("Keep the pole up.\nActions: left, right\n\nThe pole leans ")
    assert described.tasks(1)[0].task_id == "pole/train/0"
    assert env.check(described, actions=["left", "right"]).ended == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "NoSuchGame-v1"}, "'NoSuchGame-v1' is refused"),
        ({"game": "Pendulum-v1"}, "give an environment with discrete actions"),
        ({"game": "Taxi-v4", "actions": ["a"]}, "actions has 1 names, but Taxi-v4 has 6"),
        ({"game": "Taxi-v4", "max_turns": 0}, "max_turns is 0"),
        ({"game": "Taxi-v4", "seed": -1}, "seed is -1"),
        ({"game": "Taxi-v4", "held_out": 1.5}, "held_out is 1.5"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        env.Gymnasium(**arguments)


def test_wrong_calls():
    world = env.Gymnasium("FrozenLake-v1", held_out=3)
    with pytest.raises(InvalidInputError, match="count is -1"):
        world.tasks(-1)
    with pytest.raises(InvalidInputError, match="split is 'test'"):
        world.tasks(1, split="test")
    with pytest.raises(InvalidInputError, match="start is 4, but split 'held_out' has 3 tasks; request at most 3"):
        world.tasks(4, split="held_out")
    with pytest.raises(InvalidInputError, match="'x' is not of this Gymnasium"):
        world.reset(env.Task("x", "?", "x", None), 0)
