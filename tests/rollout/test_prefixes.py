"""Branches that begin with tokens they did not sample: prefixes, splices, other prompts, actions that a fork cuts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from sampled import ACTION, RecordingEngine, check_sampled
from small_world import END, SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.exceptions import InvalidInputError, NotFoundError
from agentrl_core.rollout import Group, Prefix, Rollout

OLD = ("behaviour", "recomputed", "none")
FINISHED, PRUNED, FAILED = 0, 3, 4
SPLICE = 4


class Speaking(SmallWorld):
    """An environment of four turns, a quarter each; `seen` has the episodes' actions, in the order of their ends."""

    def __init__(self, *, noise: str = "") -> None:
        self.seen: list[list[str]] = []

        def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
            del task, seed
            if len(actions) < 4:
                return StepResult("x" * (len(actions) + len(noise)), reward=0.25)
            self.seen.append(list(actions))
            return StepResult(reward=1.0, terminated=True, success=True)

        super().__init__(answer)
        self.chat.action = lambda text: np.array([*map(int, text.split()), END], np.int32)


def rolled_out(
    group: Callable[[Any, Group], Awaitable[None]], world: SmallWorld, *, sampled: int | None = None, **options: Any
) -> arl.Batch:
    """Roll out one group by a program, and check that exactly a number of sampled tokens is trained."""
    program = type("GroupProgram", (Rollout,), {"group": group})()
    engine = RecordingEngine(world)
    collect = arl.Collector(engine, world, recipes.GRPO.replace(rollout=program), task_pool=8, **options)
    batch = collect(tasks=1, group_size=1)
    count = check_sampled(batch, engine)
    assert count == sampled or (sampled is None and count)
    return batch


def rows(batch: arl.Batch, name: str = "trajectories") -> pl.DataFrame:
    return pl.DataFrame(getattr(batch, name))


def test_a_demonstration_is_a_prefix_that_is_not_trained() -> None:
    async def group(_: Any, group: Group) -> None:
        branch = group.start(prefix=Prefix(["3 4", "5"], begun="6"))
        await group.run([branch])
        assert [turn.text for turn in branch.turns[:2]] == ["3 4 9", "5 9"]
        assert branch.turns[2].text.startswith("6 "), "the branch goes on with the action that was begun"
        assert branch.reward == 1.75

    # By hand: [1 2 5] 3 4 9 [1 1] 5 9 [1 2] 6 sampled(4) [1 3] sampled(4): eight tokens are trained.
    batch = rolled_out(group, world := Speaking(), sampled=8)
    assert world.seen[0][:2] == ["3 4 9", "5 9"], "the environment has seen it"
    assert world.seen[0][2].startswith("6 ")
    actions = rows(batch, "nodes").filter(pl.col("kind") == ACTION)
    assert [row for row in actions["tokens"].to_list() if len(row) < 4] == [[3, 4, 9], [5, 9], [6]]
    assert actions["trainable"].to_list() == [[0, 0, 0], [0, 0], [0], None, None]
    assert batch.column("trainable", "token").tolist() == [0] * 6 + [1] * 8
    assert rows(batch, "decisions")["reason"].to_list() == ["prefix"]
    assert OLD[rows(batch, "draws")["old_logprob"][0]] == "behaviour"


def test_a_branch_can_continue_a_stored_trajectory() -> None:
    world = Speaking()
    stored = arl.Collector(world, world, recipes.GRPO, task_pool=8)(tasks=1, group_size=2)
    one = int(rows(stored)["trajectory_id"][1])
    path = stored.contexts()
    tokens = path.tokens[path.offsets[1] : path.offsets[2]]
    began = path.begins[4:8]

    async def group(_: Any, group: Group) -> None:
        branch = group.start(prefix=Prefix.stored(stored, one, turns=2, tokens=3))
        await group.run([branch])
        assert branch.tokens[: began[2] + 3].tolist() == tokens[: began[2] + 3].tolist()
        assert branch.turns[2].text.split()[:3] == [str(token) for token in tokens[began[2] :][:3]]

    batch = rolled_out(group, world, sampled=8)
    assert "after 2 turns" in rows(batch, "decisions")["reason"][0]

    async def elsewhere(_: Any, group: Group) -> None:
        branch, other = await group.run([group.start(prefix=Prefix.stored(stored, one, turns=2)), group.start()])
        assert (branch.status, other.status) == ("failed", "finished")

    with pytest.warns(RuntimeWarning, match="before action 2 differs from the recorded one"):
        batch = rolled_out(elsewhere, Speaking(noise="noise"), sampled=16)
    assert sorted(rows(batch)["status"]) == [FINISHED, FAILED]
    with pytest.raises(NotFoundError, match="no trajectory 77"):
        Prefix.stored(stored, 77)
    with pytest.raises(InvalidInputError, match=r"turns is 5, but .* has 4 turns; give a number from 0 to 4"):
        Prefix.stored(stored, one, turns=5)
    with pytest.raises(InvalidInputError, match=r"tokens is 9 for .* has 4 tokens; give a number from 0 to 4"):
        Prefix.stored(stored, one, turns=1, tokens=9)
    with pytest.raises(InvalidInputError, match=r"actions\[0\] is empty"):
        Prefix([""])


def test_the_beginning_of_a_branch_begins_another_group() -> None:
    async def group(program: Any, group: Group) -> None:
        if len(group.key) > 2:
            [prefixed] = await group.run([group.start(prefix=prefixes[0])])
            assert prefixed.turns[0].text == began[0]
            return
        branch = group.start()
        await branch.turn()
        prefixes[:], began[:] = [Prefix.of(branch, 1)], [branch.turns[0].text]
        await group.run([branch])
        await group.spawn(group.task, program=program)

    prefixes: list[Prefix] = []
    began: list[str] = []
    batch = rolled_out(group, Speaking(), sampled=16 + 12)
    assert batch.num_groups == 2


def test_the_environment_gets_the_whole_action_that_a_fork_splits() -> None:
    async def group(_: Any, group: Group) -> None:
        [trunk] = group.start_many(1)
        turn = await trunk.turn()
        fork = trunk.fork(turn.position(2))
        await group.run([trunk, fork])
        assert fork.turns[0].text.split()[:2] == turn.text.split()[:2]
        assert len(fork.turns[0].text.split()) == 2 + 4

    batch = rolled_out(group, world := Speaking())
    assert sorted(len(actions[0].split()) for actions in world.seen) == [4, 6]
    assert batch.num_draws == 2


def test_a_fork_keeps_the_facts_and_success_from_before_it() -> None:
    class ReportingSpeaker(Speaking):
        facts: ClassVar = {"steps": ExtraColumn("trajectory"), "closed": ExtraColumn("trajectory")}

        def __init__(self) -> None:
            super().__init__()
            answer = self.answer
            self.answer = lambda task, seed, actions: replace(
                answer(task, seed, actions),
                facts={"steps": float(len(actions)), **({"closed": 1.0} if len(actions) == 4 else {})},
                success=len(actions) >= 2,
            )

    class Program(Rollout):
        facts: ClassVar = {"manner": ExtraColumn("trajectory"), "said": ExtraColumn("trajectory")}

        async def group(self, group: Group) -> None:
            trunk = group.start(facts={"manner": 7.0})
            for _ in range(3):
                await trunk.turn()
            fork = trunk.fork(trunk.turns[2].begin)
            other = trunk.fork(trunk.turns[1].begin, facts={"manner": 8.0})
            again = other.fork()
            await trunk.turn()
            assert trunk.record.facts == {"manner": 7.0, "steps": 4.0, "closed": 1.0}
            fork.finish(facts={"said": 1.0})
            assert (fork.record.facts, fork.success) == ({"manner": 7.0, "steps": 2.0, "said": 1.0}, True)
            late = fork.fork()
            for branch, success in ((late, True), (other, False), (again, False)):
                assert branch.success is success
                branch.finish()
            assert late.record.facts == {"manner": 7.0, "steps": 2.0}, "what the end said is not known before it"
            assert other.record.facts == again.record.facts == {"manner": 8.0, "steps": 1.0}

    world = ReportingSpeaker()
    recipe = recipes.GRPO.replace(rollout=Program())
    batch = arl.Collector(world, world, recipe, task_pool=8)(tasks=1, group_size=1)
    assert sorted(batch.column("steps", "draw").tolist()) == [1.0, 1.0, 2.0, 2.0, 4.0]
    assert sorted(batch.column("manner", "draw").tolist()) == [7.0] * 3 + [8.0] * 2


def test_a_fork_may_leave_its_prefix_untrained() -> None:
    async def group(_: Any, group: Group) -> None:
        [trunk] = await group.run(group.start_many(1))
        await group.run([trunk.fork(trunk.turns[2].begin, train_prefix=False)])

    # The trunk trains its four actions of four tokens, the fork the last two of its own.
    batch = rolled_out(group, Speaking(), sampled=16 + 8)
    trained = batch.column("trainable", "token").reshape(2, 16)
    assert sorted(trained.sum(axis=1).tolist()) == [8, 16]


def test_a_splice_ends_as_its_suffix_did() -> None:
    async def group(_: Any, group: Group) -> None:
        bad, good = group.start_many(2)
        await group.run([good])
        await bad.turn()
        await bad.turn()
        mended = bad.fork(train_prefix=False).splice(good, good.turns[1].begin)
        bad.stop("mended")
        assert mended.status == "finished"
        assert [turn.text for turn in mended.turns] == [turn.text for turn in (*bad.turns, *good.turns[1:])]
        assert mended.reward == 0.5 + (0.25 * 2 + 1.0)
        assert mended.success
        place = mended.turns[3].begin
        assert mended.tokens[place.tokens : place.tokens + 4].tolist() == good.turns[2].segments[0].tokens.tolist()
        again = mended.fork(place)
        assert again.turns == mended.turns[:3]
        await group.run([again])
        assert again.reward == 0.5 + 0.25 + 0.25 + 1.0, "its episode is that of the suffix"
        with pytest.raises(InvalidInputError, match="cannot be replayed to that position; fork the other branch"):
            mended.fork(mended.turns[1].begin)
        with pytest.raises(InvalidInputError, match="is inside an action of branch"):
            bad.splice(good, good.turns[1].position(2))

    batch = rolled_out(group, world := Speaking())
    assert len(world.seen) == 2, "no environment saw the mended one"
    assert (rows(batch, "decisions")["operation"] == SPLICE).sum() == 1
    voids = [OLD[code] for code in rows(batch, "draws")["old_logprob"]]
    assert sorted(voids) == ["behaviour", "none", "none"]
    steps = rows(batch, "steps").group_by("trajectory_id").len()["len"].to_list()
    assert sorted(steps) == [2, 2, 4, 5, 5]


def test_the_same_actions_under_another_prompt() -> None:
    async def group(_: Any, group: Group) -> None:
        prompted = group.start("a long demonstration", facts=None)
        await group.run([prompted])
        unprompted = prompted.with_prompt(None)
        assert (prompted.status, unprompted.status, unprompted.reward) == ("pruned", "finished", 1.75)
        assert unprompted.tokens[:3].tolist() == [1, 2, len("begin")]
        assert unprompted.tokens[3:].tolist() == prompted.tokens[3:].tolist()
        assert [turn.text for turn in unprompted.turns] == [turn.text for turn in prompted.turns]
        fork = unprompted.fork(unprompted.turns[2].begin)
        await group.run([fork])
        assert fork.reward == 1.75
        running = group.start("told")
        with pytest.raises(InvalidInputError, match="await a turn first"):
            running.with_prompt(None)
        await running.turn()
        reprompted = running.with_prompt("other")
        assert running.over
        assert not reprompted.over
        await group.run([reprompted])

    batch = rolled_out(group, world := Speaking(), sampled=8 + 12)
    assert len(world.seen) == 3
    trajectories = rows(batch)
    assert sorted(trajectories["status"]) == [FINISHED] * 3 + [PRUNED] * 2
    assert sum("replaced_by" in (info or "") for info in trajectories["info"]) == 2
    assert [OLD[code] for code in rows(batch, "draws")["old_logprob"]] == ["none"] * 3
    # The first is copied whole; the fork samples two of its actions, and the third three, all after their prompts.
    assert np.isnan(batch.column("behaviour_logprob", "token")).sum() == 16 + 8 + 4
    assert batch.column("trainable", "token").all()
