"""Operations of programs on groups and branches, and the rows that each leaves in the tables."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Sampling
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Branch, Cohort, Group, Rollout

STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")
PROMPT, ACTION, OBSERVATION, INJECTED = range(4)


def long_way(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Play four turns, each paid a little; solved by the seed."""
    del task
    if len(actions) < 4:
        return StepResult("x" * len(actions), reward=0.25, flags=StepFlag.TOOL_RESULT)
    return StepResult(reward=1.0, terminated=True, success=bool(seed % 2))


def collected(program: Rollout, world: Any = None, *, tasks: int = 2, group_size: int = 2, **options: Any) -> arl.Batch:
    world = SmallWorld(long_way) if world is None else world
    recipe = recipes.GRPO.replace(rollout=program)
    return arl.Collector(world, world, recipe, task_pool=8, **options)(tasks=tasks, group_size=group_size)


def rows(batch: arl.Batch, name: str = "trajectories") -> pl.DataFrame:
    return pl.DataFrame(getattr(batch, name))


def statuses(batch: arl.Batch) -> list[str]:
    return [STATUS[status] for status in rows(batch)["status"]]


def test_a_first_program_has_five_lines() -> None:
    @dataclass(frozen=True)
    class Reflect(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.generate()
            branch.inject("Check your answer.")
            await branch.turn()

    batch = collected(Reflect())
    assert statuses(batch) == ["finished"] * 4
    nodes = rows(batch, "nodes")
    assert nodes["kind"].to_list().count(ACTION) == 8
    steps = rows(batch, "steps")
    assert steps.group_by("trajectory_id").len()["len"].to_list() == [2] * 4
    assert steps.sort("trajectory_id", "step")["reward"].to_list() == [None, 0.25] * 4, "the first was not answered"
    assert batch.column("reward", "draw").tolist() == [0.25] * 4


def test_forks_share_and_inherit() -> None:
    class Fork(Rollout):
        async def group(self, group: Group) -> None:
            [trunk] = group.start_many(1)
            first, second = await trunk.turn(), await trunk.turn()
            inside = trunk.fork(second.position(2))
            again = trunk.fork(second.begin)
            beside = trunk.fork(first.end)
            assert [branch.reward for branch in (trunk, inside, again, beside)] == [0.5, 0.25, 0.25, 0.25]
            assert inside.tokens.tolist() == trunk.tokens[: second.begin.tokens + 2].tolist()
            assert [branch.turns for branch in (inside, again)] == [[first], [first]]
            await group.run([trunk, inside, again, beside])
            assert group.count == 4

    batch = collected(Fork(), tasks=1)
    assert statuses(batch) == ["finished"] * 4
    trajectories = rows(batch)
    assert trajectories["parent_trajectory"].to_list() == [None, 0, 0, 0]
    branch_nodes = trajectories.join(rows(batch, "nodes"), left_on="branch_node", right_on="node_id")
    assert sorted(branch_nodes["kind"]) == [ACTION, OBSERVATION, OBSERVATION], "one leaves inside an action"
    assert batch.column("reward", "draw").tolist() == [1.75] * 4
    inherited = rows(batch, "steps").filter(pl.col("trajectory_id") != pl.col("origin_trajectory_id"))
    assert inherited.group_by("trajectory_id").len()["len"].to_list() == [1, 1, 1]


def test_places_of_an_ended_branch() -> None:
    class Ended(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = await group.run(group.start_many(1))
            assert [turn.begin.turns for turn in branch.turns] == [0, 1, 2, 3]
            assert [turn.end.turns for turn in branch.turns] == [1, 2, 3, 4]
            assert [turn.end.tokens for turn in branch.turns[:3]] == [turn.begin.tokens for turn in branch.turns[1:]]
            assert branch.turns[3].end.tokens == len(branch.tokens)
            again = branch.fork(branch.turns[2].position(1))
            assert again.tokens.tolist() == branch.tokens[: branch.turns[2].begin.tokens + 1].tolist()
            await group.run([again])

    batch = collected(Ended(), tasks=1)
    assert statuses(batch) == ["finished"] * 2
    assert batch.column("reward", "draw").tolist() == [1.75] * 2


def test_rolled_back_turns_are_stored_as_a_pruned_trajectory() -> None:
    class Repair(Rollout):
        async def branch(self, branch: Branch) -> None:
            turn = await branch.turn()
            branch.rollback(turn.begin)
            while not branch.over:
                await branch.turn()

    batch = collected(Repair(), tasks=1, group_size=1)
    assert sorted(statuses(batch)) == ["finished", "pruned"]
    assert batch.num_draws == 1
    assert batch.column("reward", "draw").tolist() == [1.75]
    assert len(rows(batch, "steps").filter(pl.col("trajectory_id") == rows(batch, "draws")["trajectory_id"][0])) == 4


def test_a_rollback_can_keep_the_episode() -> None:
    histories: list[list[str]] = []

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        histories.append(list(actions))
        return long_way(task, seed, actions)

    class Clean(Rollout):
        async def branch(self, branch: Branch) -> None:
            bad = await branch.turn()
            branch.rollback(bad.begin, episode="keep")
            while not branch.over:
                await branch.turn()

    batch = collected(Clean(), SmallWorld(answer), tasks=1, group_size=1)
    assert len(histories[-1]) == 4, "the environment saw the action that the record lacks"
    drawn = rows(batch, "draws")["trajectory_id"][0]
    assert len(rows(batch, "steps").filter(pl.col("trajectory_id") == drawn)) == 3


def test_written_actions_have_no_log_probs() -> None:
    class Expert(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.turn("the expert says")
            while not branch.over:
                await branch.turn()

    class Speaking(SmallWorld):
        def __init__(self) -> None:
            super().__init__(long_way)
            self.chat.action = lambda text: np.array([len(text) % 9, 9], np.int32)

    batch = collected(Expert(), Speaking(), tasks=1, group_size=2)
    actions = rows(batch, "nodes").filter(pl.col("kind") == ACTION)
    written_actions = actions.filter(pl.col("logprobs").is_null())
    assert written_actions["tokens"].to_list() == [[15 % 9, 9]] * 2
    assert len(actions) == 8


def test_early_ends() -> None:
    class Ends(Rollout):
        async def group(self, group: Group) -> None:
            won, cut, lost, left = group.start_many(4)
            await group.turn([won, cut, lost, left])
            won.finish(reward=2.0, success=True)
            cut.stop("too long", status="truncated")
            lost.stop("hopeless")
            assert [branch.status for branch in group.branches] == ["finished", "truncated", "pruned", "running"]

    batch = collected(Ends(), tasks=1)
    assert statuses(batch) == ["finished", "truncated", "pruned", "aborted"]
    assert batch.column("reward", "draw").tolist() == [2.0, 0.25]
    assert "hopeless" in rows(batch)["info"][2]
    assert "left by the program" in rows(batch)["info"][3]
    operations = rows(batch, "decisions")["operation"].to_list()
    assert len(operations) == 4 + 3, "four starts, three stops"


def test_a_branch_that_waits_is_stopped_by_another() -> None:
    class Slow(SmallWorld):
        aborted: ClassVar[list[Any]] = []
        waiting: ClassVar[dict[Any, asyncio.Event]] = {}

        async def generate(self, request: Any) -> Any:
            segment = await super().generate(request)
            if request.seed in self.waiting:
                await self.waiting[request.seed].wait()
            return segment

        def abort(self, request: Any) -> None:
            self.aborted.append(request)
            self.waiting[request.seed].set()

    world = Slow(long_way)

    class First(Rollout):
        async def group(self, group: Group) -> None:
            one, two = group.start_many(2)
            await group.turn([one, two])

            async def drive(branch: Branch) -> None:
                if branch is two:
                    world.waiting[group._runtime.forest.segment_seed(two.handle)] = asyncio.Event()
                    turn = await two.turn()
                    assert turn.over
                    return
                while not branch.over:
                    await branch.turn()
                two.stop("somebody was first")

            await group.run([one, two], drive)

    batch = collected(First(), world, tasks=1)
    assert statuses(batch) == ["finished", "pruned"]
    assert len(world.aborted) == 1


def test_a_program_can_add_members_after_reading_scores() -> None:
    class More(Rollout):
        async def group(self, group: Group) -> None:
            await group.run(group.start_many(group.size))
            scores = await group.score()
            assert scores.shape == (2,)
            assert np.isfinite(scores).all()
            if group.key[1] == 1:
                await group.run(group.start_many(3))
            assert len(await group.score("score", group.branches[2:])) == len(group.branches) - 2

    batch = collected(More(), tasks=2)
    assert np.bincount(batch.keys("group_id", "draw")).tolist() == [2, 5]


def test_derived_groups_and_effects() -> None:
    judged: list[str] = []

    def judge(text: str) -> dict[str, float]:
        judged.append(text)
        return {"score": float(len(text))}

    class Verify(Rollout):
        async def group(self, group: Group) -> None:
            [solver] = await group.run(group.start_many(1))
            verdict = await group.side_effect("judge", judge, solver.text)
            assert verdict == {"score": float(len(solver.text))}
            task = Task(f"verify {group.task.task_id}", "is it so?", "derived", None)
            derived = await group.spawn(task, size=2, parent=solver, program=Plain())
            assert [branch.over for branch in derived.branches] == [True, True]
            assert derived.key == (*group.key, 0)

    class Plain(Rollout):
        """A program with the default behaviour."""

    batch = collected(Verify(), tasks=2)
    assert len(judged) == 2
    tasks = rows(batch)["task_id"].to_list()
    assert sorted(set(tasks)) == sorted(
        [*(t for t in tasks if t.startswith("train")), *(f"verify {t}" for t in tasks if t.startswith("train"))]
    )
    assert batch.num_groups == 4
    assert np.bincount(batch.keys("group_id", "draw")).tolist() == [1, 2, 1, 2], "a derived group follows its own"


def test_sampling_by_request_and_roles() -> None:
    samplings: list[Sampling] = []

    class Listening(SmallWorld):
        async def generate(self, request: Any) -> Any:
            samplings.append(request.sampling)
            return await super().generate(request)

    class ReMax(Rollout):
        async def group(self, group: Group) -> None:
            greedy = group.start(sampling=group.sampling(temperature=0.0), role="baseline")
            await group.run([group.start(), greedy])

    batch = collected(ReMax(), Listening(long_way), tasks=1, sampling=Sampling(temperature=0.7, max_tokens=8))
    assert {each.temperature for each in samplings} == {0.0, 0.7}
    assert rows(batch, "nodes").filter(pl.col("kind") == ACTION)["sampling"].struct.field("temperature").n_unique() == 2
    assert sorted(rows(batch)["role"]) == [0, 1]
    draws = rows(batch, "draws")
    assert sorted(draws["trained"]) == [0, 1], "the baseline votes, and is not trained"


def test_a_cohort_spends_a_budget_over_groups() -> None:
    class Shared(Rollout):
        async def cohort(self, groups: Cohort) -> None:
            await groups.run()
            means = [float(scores.mean()) for scores in await groups.score()]
            best = groups[int(np.argmax(means))]
            await groups.run_each(lambda group: group.run(group.start_many(2)), [best])

    batch = collected(Shared(), tasks=3)
    assert sorted(np.bincount(batch.keys("group_id", "draw")).tolist()) == [2, 2, 4]


def test_branches_as_they_are_completed() -> None:
    order: list[list[int]] = []

    class Completed(Rollout):
        async def group(self, group: Group) -> None:
            branches = group.start_many(4)
            order.append([branch.key[1] async for branch in group.as_completed(branches)])

    collected(Completed(), tasks=2, group_size=4)
    assert order == [[0, 1, 2, 3]] * 2

    class Arrival(Rollout):
        async def group(self, group: Group) -> None:
            async for branch in group.as_completed(group.start_many(4), order="arrival"):
                branch.mask("seen")
                break

    batch = collected(Arrival(), tasks=1, group_size=4)
    assert statuses(batch).count("finished") >= 1
    assert set(statuses(batch)) <= {"finished", "aborted"}


def test_a_context_is_rewritten_with_its_sampled_tokens() -> None:
    class Window(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.turn()
            last = await branch.turn()
            sampled = branch.tokens[last.begin.tokens : last.begin.tokens + last.length].tolist()
            await branch.rewrite([{"role": "user", "content": "go on"}, last, {"role": "tool", "content": "so far"}])
            assert branch.tokens[3:7].tolist() == sampled
            while not branch.over:
                await branch.turn()

    batch = collected(Window(), tasks=1, group_size=1)
    assert statuses(batch) == ["finished"]
    nodes = rows(batch, "nodes")
    assert nodes.filter(pl.col("kind") == INJECTED)["tokens"].list.len().sum() >= 4, "what is repeated is not trained"


def test_an_action_in_parts() -> None:
    class Chunks(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = group.start_many(1)
            first = await branch.generate(max_tokens=1)
            assert first is not None
            [second] = await group.advance([branch], tokens=2)
            assert second is not None
            turn = await branch.submit()
            assert turn.length == 3
            assert len(turn.segments) == 2

    class Counting(SmallWorld):
        async def generate(self, request: Any) -> Any:
            segment = await super().generate(request)
            count = min(request.sampling.max_tokens, 4)
            if count == 4:
                return segment
            return type(segment)(
                segment.tokens[:count], segment.logprobs[:count], segment.entropies[:count], "length", 0, request.seed
            )

    batch = collected(Chunks(), Counting(long_way), tasks=1)
    assert [len(tokens) for tokens in rows(batch, "nodes").filter(pl.col("kind") == ACTION)["tokens"]] == [1, 2]


def test_random_numbers_depend_on_keys_alone() -> None:
    drawn: list[tuple[float, float, float]] = []

    class Random(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = group.start_many(1)
            await branch.turn()
            drawn.append((group.uniform("a", 1), branch.uniform("a", 1), branch.turns[0].uniform(0)))
            assert group.uniform("a", 1) == drawn[-1][0]
            assert group.uniform("a", 2) != drawn[-1][0]

    collected(Random())
    collected(Random())
    assert sorted(drawn[:2]) == sorted(drawn[2:])
    assert len({number for numbers in drawn for number in numbers}) == 6
    assert all(0 <= number < 1 for numbers in drawn for number in numbers)


WRONG: dict[str, tuple[Any, str]] = {}


def wrong(message: str) -> Any:
    def keep(function: Any) -> Any:
        WRONG[function.__name__] = function, message
        return function

    return keep


@wrong("has ended \\(finished\\); fork it to continue")
async def turn_of_an_ended_branch(group: Group) -> None:
    [branch] = await group.run(group.start_many(1))
    await branch.turn()


@wrong("because another task awaits it already")
async def two_drivers(group: Group) -> None:
    [branch] = group.start_many(1)
    await asyncio.gather(branch.turn(), branch.turn())


@wrong("was used in another asyncio task")
async def a_child_decides(group: Group) -> None:
    async def drive(branch: Branch) -> None:
        group.start()
        await branch.turn()

    await group.run(group.start_many(1), drive)


@wrong("has no prompt yet; call await branch.begin")
async def a_fork_before_the_prompt(group: Group) -> None:
    group.start().fork()


@wrong("has no turn to inject after")
async def inject_at_the_prompt(group: Group) -> None:
    group.start().inject("psst")


@wrong("position token=1000; give a whole number from 1 to")
async def a_place_behind_the_end(group: Group) -> None:
    [branch] = group.start_many(1)
    await branch.turn()
    branch.position(1000)


@wrong("no action is open; generate\\(\\) or write\\(\\) one")
async def an_answer_without_an_action(group: Group) -> None:
    [branch] = group.start_many(1)
    await branch.turn()
    await branch.submit()


@wrong("environment='moon' is unknown to the collector; use one of: 'world'")
async def an_unknown_environment(group: Group) -> None:
    group.start(environment="moon")


@wrong("which cannot be stored .*; return numbers, texts, lists and dicts")
async def an_effect_without_json(group: Group) -> None:
    await group.side_effect("model", object)


@wrong("a rollout program cannot call the collector")
async def collecting_inside(group: Group) -> None:
    del group
    collected(recipes.GRPO.rollout)


@pytest.mark.parametrize("name", WRONG)
def test_forbidden_operations_of_a_program_raise(name: str) -> None:
    function, message = WRONG[name]

    class Wrong(Rollout):
        async def group(self, group: Group) -> None:
            await function(group)

    assert len(WRONG) == 10
    with pytest.raises(InvalidInputError, match=message):
        collected(Wrong(), tasks=1)


def test_limits_of_turns_and_tokens() -> None:
    turns = collected(recipes.GRPO.rollout, turn_limit=2)
    assert statuses(turns) == ["truncated"] * 4
    assert rows(turns, "steps").group_by("trajectory_id").len()["len"].to_list() == [2] * 4
    later = collected(recipes.GRPO.rollout, turn_limit=arl.Schedule(3, 9, 10))
    assert rows(later, "steps").group_by("trajectory_id").len()["len"].to_list() == [3] * 4
    tokens = collected(recipes.GRPO.rollout, context_tokens=12)
    assert statuses(tokens) == ["truncated"] * 4
