"""Several agents in one episode: turn order, what each agent reads, forks, failures, and a kill in the middle."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from referee_game import GameWorld, NumberEngine
from sampled import ACTION, RecordingEngine, check_sampled
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError, RecipeError
from agentrl_core.rollout import Branch, Group, Rollout, SelfPlay

AGENTS = ("one", "two", "referee")
TABLES = ("nodes", "steps", "trajectories", "draws", "decisions")


def rows(batch: arl.Batch, name: str = "trajectories") -> pl.DataFrame:
    return pl.DataFrame(getattr(batch, name)).drop("created_us", strict=False)


def program(group: Callable[[Any, Group], Awaitable[None]]) -> Rollout:
    return type("GroupProgram", (Rollout,), {"group": group})()


def played(
    rollout: Rollout, world: Any = None, *, engines: Any = None, store: arl.Store | None = None, size: int = 1
) -> tuple[arl.Batch, list[RecordingEngine]]:
    recorders = [RecordingEngine(engine) for engine in engines or (NumberEngine(), NumberEngine(), NumberEngine())]
    table = dict(zip(AGENTS, recorders, strict=False)) if len(recorders) > 1 else recorders[0]
    recipe = recipes.GRPO.replace(rollout=rollout)
    world = GameWorld() if world is None else world
    collect = arl.Collector(table, world, recipe, store=store, task_pool=4, seed=3)
    batch = collect(tasks=1, group_size=size)
    assert check_sampled(batch, *recorders) > 0
    return batch, recorders


def test_a_game_by_hand() -> None:
    """Tokens of each agent, by the rule of the game: an action ends with 9, an observation begins with 1."""
    batch, recorders = played(
        SelfPlay(agents=("one", "two", "referee")), engines=(NumberEngine(3), NumberEngine(4), NumberEngine(5))
    )
    paths = {1: [1, 1, 3, 9, 1, 5, 3, 9], 2: [1, 2, 4, 9, 1, 5, 4, 9], 7: [1, 7, 3, 4, 5, 9, 1, 3, 4, 5, 9]}
    contexts = batch.contexts()
    token_paths = [contexts.tokens[a:b].tolist() for a, b in zip(contexts.offsets, contexts.offsets[1:], strict=False)]
    assert {path[1]: path for path in token_paths} == paths
    assert [engine.contexts for engine in recorders] == [
        [paths[1][:2], paths[1][:6]],
        [paths[2][:2], paths[2][:6]],
        [paths[7][:4], paths[7][:9]],
    ]
    trajectories = rows(batch)
    # 4 is larger than 3 in the end, so two wins; one was paid a quarter for each of its two moves.
    assert trajectories.sort("agent")["reward"].to_list() == [0.25 * 2 - 1.0, 1.0, 0.5]
    assert trajectories.sort("agent")["success"].to_list() == [0, 1, 1]
    assert trajectories["episode_id"].n_unique() == 1
    assert sorted(batch.keys("agent", "draw").tolist()) == [0, 1, 2]
    nodes = rows(batch, "nodes").filter(pl.col("kind") == ACTION)
    assert sorted(nodes["policy"].to_list()) == [0, 0, 1, 1, 2, 2], "each token is of the policy of its agent"
    # The agent's own state: one and two never act on the same one.
    assert len(set(batch.keys("state_key", "step").tolist())) == 6


def test_steps_record_when_in_the_episode_they_happened() -> None:
    """The players move together, then the referee, repeatedly: by hand, both have 0 and 2, the referee 1 and 3."""
    batch, _ = played(
        SelfPlay(agents=("one", "two", "referee")), engines=(NumberEngine(3), NumberEngine(4), NumberEngine(5)), size=2
    )
    moves, offsets = batch.column("joint_move", "step"), batch.offsets("step")
    agents = batch.keys("agent", "draw").tolist()
    draw_moves = [moves[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert sorted(zip(agents, draw_moves, strict=True)) == sorted(
        [(0, [0.0, 2.0]), (1, [0.0, 2.0]), (2, [1.0, 3.0])] * 2
    )


def test_one_model_plays_all_and_a_referee_may_be_a_helper() -> None:
    batch, _ = played(
        SelfPlay(agents=("one", "two", "referee"), helpers=("referee",)), engines=(NumberEngine(),), size=3
    )
    assert batch.num_draws == 6
    assert rows(batch).height == 9
    assert rows(batch)["episode_id"].n_unique() == 3
    scored = recipes.GRPO.replace(advantage=arl.advantage.GroupRelative(group_by="group_id,agent")).credit(batch)
    advantages, agents = scored.column("advantage", "draw"), scored.keys("agent", "draw")
    for agent in set(agents.tolist()):
        assert abs(advantages[agents == agent].sum()) < 1e-5, "agents are compared with themselves"


def test_a_fork_takes_the_others_along() -> None:
    async def group(_: Any, group: Group) -> None:
        one = group.start(agent="one")
        two, referee = (group.start(agent=agent, episode=one) for agent in AGENTS[1:])
        await group.turn([one, two])
        [referee_turn] = await group.turn([referee])
        await group.turn([one, two])
        again = referee.fork(referee_turn.begin)
        other_one, other_two = again.peers
        assert [len(branch.turns) for branch in (again, other_one, other_two)] == [0, 1, 1]
        assert (other_one.turns[0].text, other_one.reward) == (one.turns[0].text, 0.25)
        assert again.can_act
        assert not other_one.can_act
        await group.turn([again])
        await group.turn([other_one, other_two])
        assert other_one.tokens[:5].tolist() == one.tokens[:5].tolist(), "what comes before the fork is shared"
        turn_tokens = [int(token) for token in again.turns[0].text.split()]
        assert other_one.tokens[5 : 6 + len(turn_tokens)].tolist() == [1, *turn_tokens], "it heard what the fork said"
        early = one.fork(one.turns[0].begin)
        assert [(peer.agent, len(peer.turns)) for peer in early.peers] == [("two", 0), ("referee", 0)]
        now = one.fork()
        assert [len(peer.turns) for peer in now.peers] == [2, 1]
        for team in ([one, two, referee], [again, other_one, other_two], [early, *early.peers], [now, *now.peers]):
            while movers := [branch for branch in team if branch.can_act]:
                await group.turn(movers)
            assert all(branch.over for branch in team)
            assert {len(branch.turns) for branch in team} == {2}

    world = GameWorld()
    batch, _ = played(program(group), world)
    assert batch.num_draws == 12
    assert sorted(rows(batch)["episode_id"].value_counts()["count"].to_list()) == [3] * 4, "each match is one episode"
    assert {len(game.log) for game in world.games} <= {0, 1, 2, 3, 4}
    rewards = dict(zip(rows(batch)["trajectory_id"], rows(batch)["reward"], strict=True))
    assert len(rewards) == 12
    assert sorted(set(rewards.values())) <= [-1.0, -0.5, 0.5, 1.0, 1.5]


def test_equal_seeds_give_equal_matches_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    play = SelfPlay(agents=("one", "two", "referee"))
    expected, _ = played(play, size=2)
    again, _ = played(play, size=2)
    for name in TABLES:
        assert rows(expected, name).equals(rows(again, name), null_equal=True), name

    class CutOff(NumberEngine):
        async def generate(self, request: Any) -> Any:
            if len(self.contexts) == 3:
                raise KeyboardInterrupt
            return await super().generate(request)

    with arl.Store.open(tmp_path / "run") as store, pytest.raises(KeyboardInterrupt):
        played(play, engines=(NumberEngine(), NumberEngine(), CutOff()), store=store, size=2)
    with arl.Store.open(tmp_path / "run") as store:
        known = {name.decode() for name, _ in store.rollout_log(0).records()}
        assert sum("/answer" in name for name in known) >= 3
        recorders = [RecordingEngine(NumberEngine()) for _ in AGENTS]
        world = GameWorld()
        collect = arl.Collector(
            dict(zip(AGENTS, recorders, strict=True)),
            world,
            recipes.GRPO.replace(rollout=play),
            store=store,
            task_pool=4,
            seed=3,
        )
        batch = collect(tasks=1, group_size=2)
        assert 0 < sum(len(engine.exchanges) for engine in recorders) < 12, "what was recorded is not sampled again"
        for name in TABLES:
            assert rows(expected, name).equals(rows(batch, name), null_equal=True), name


@pytest.mark.parametrize("runs", ["inline", "thread", "process"])
def test_an_episode_that_breaks_down_fails_all_its_branches(runs: str) -> None:
    recipe = recipes.GRPO.replace(rollout=SelfPlay(agents=("one", "two", "referee")))
    collect = arl.Collector(NumberEngine(), GameWorld(fails_at=3, runs=runs), recipe, task_pool=4)
    with (
        pytest.warns(RuntimeWarning, match="iteration 0 has no draws, .* 6 trajectories failed"),
        pytest.warns(RuntimeWarning, match=r"failed 3 times \(last error: RuntimeError: the lights went out"),
    ):
        batch = collect(tasks=1, group_size=2)
    collect.close()
    assert batch.num_draws == 0
    assert rows(batch)["status"].to_list() == [4] * 6


def test_invalid_multi_agent_programs_and_options_are_refused() -> None:
    async def twice(_: Any, group: Group) -> None:
        one = group.start(agent="one")
        with pytest.raises(InvalidInputError, match="agent='one' already plays this episode, as branch"):
            group.start(agent="one", episode=one)
        two = group.start(agent="two", episode=one)
        other = group.start(agent="nobody", episode=one)
        with pytest.raises(InvalidInputError, match="agent='nobody' is not an agent of the episode; use one of: 'one'"):
            await other.turn()
        referee = group.start(agent="referee", episode=one)
        await one.generate()
        with pytest.raises(InvalidInputError, match="has an open action, but moves are submitted without it"):
            await two.turn()
        await group.turn([one, two])
        await referee.turn()
        with pytest.raises(InvalidInputError, match="plays a multi-agent episode, which cannot be rolled back"):
            one.rollback(one.turns[0].begin)
        assert isinstance(one, Branch)
        other.drop("no part")
        while movers := [branch for branch in (one, two, referee) if branch.can_act]:
            await group.turn(movers)

    batch, _ = played(program(twice), engines=(NumberEngine(),))
    assert batch.num_draws == 3

    async def alone(_: Any, group: Group) -> None:
        one = group.start()
        group.start(agent="two", episode=one)
        await one.turn()

    world = SmallWorld()
    with pytest.raises(InvalidInputError, match="its environment has one agent"):
        arl.Collector(world, world, recipes.GRPO.replace(rollout=program(alone)), task_pool=4)(tasks=1, group_size=1)
    for options, message in (
        ({"agents": ()}, r"agents=\(\) is not possible; give the names of the agents, each once"),
        ({"agents": ("a", "a")}, "agents=.* is not possible; give the names of the agents, each once"),
        ({"agents": ("a", "b"), "helpers": ("c",)}, r"helpers=\('c',\) is not possible; give names of agents"),
    ):
        with pytest.raises(RecipeError, match=message):
            SelfPlay(**options)


def test_step_results_of_a_multi_agent_environment_are_checked() -> None:
    def collected(step: Any, turn_of: Any = None) -> None:
        class Wrong(GameWorld):
            def reset(self, task: Any, seed: int) -> Any:
                game: Any = super().reset(task, seed)
                game.step = step
                if turn_of is not None:
                    game.turn_of = turn_of
                return game

        recipe = recipes.GRPO.replace(rollout=SelfPlay(agents=("one", "two", "referee")))
        arl.Collector(NumberEngine(), Wrong(), recipe, task_pool=4)(tasks=1, group_size=1)

    outcome = arl.env.StepResult()
    for step, message in (
        (lambda _: 3, "step gave 3 .*return a table with an env.StepResult for each agent"),
        (lambda _: {"one": outcome}, "step gave no result for agent 'two', which acted"),
        (
            lambda _: {"one": outcome, "two": outcome, "you": outcome},
            "step gave agent 'you', which does not exist; use one of",
        ),
    ):
        with pytest.warns(AgentRLWarning, match=message), pytest.warns(AgentRLWarning, match="has no draws"):
            collected(step)
