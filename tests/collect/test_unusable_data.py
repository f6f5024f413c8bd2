"""Unusable data drops only its group, is reported with its task, and never enters a rollout log."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_world import SmallWorld, paying

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.collect import evaluate
from agentrl_core.engine import Request, Segment
from agentrl_core.engine.base import TopLogprobs, checked_segment
from agentrl_core.env import Context, ExtraColumn, StepResult, Task
from agentrl_core.exceptions import AgentRLWarning, DataError, EngineError, InvalidInputError

NAN, INF = math.nan, math.inf


def with_values(**values: Any) -> Callable[[Segment], Any]:
    """Return the segment with other values, whatever their types."""

    def changed(segment: Segment) -> Segment:
        copy = replace(segment)
        for name, value in values.items():
            object.__setattr__(copy, name, value)
        return copy

    return changed


BAD_SEGMENTS: Mapping[str, tuple[Callable[[Segment], Any], str]] = {
    "nothing": (lambda _: None, "returned None; return an engine.Segment"),
    "a text": (lambda _: "hello", "returned 'hello'"),
    "NaN": (with_values(logprobs=np.array([-0.1, NAN, -0.1, -0.1], np.float32)), r"logprobs\[1\] is NaN"),
    "minus infinity": (with_values(logprobs=np.array([-INF, -1, -1, -1], np.float32)), r"logprobs\[0\] is -inf"),
    "positive": (with_values(logprobs=np.array([0.5, -1, -1, -1], np.float32)), r"logprobs\[0\] is 0.5"),
    "too large": (with_values(logprobs=np.array([-1e300, -1, -1, -1])), r"logprobs\[0\] is -inf"),
    "None": (with_values(logprobs=[None, -1.0, -1.0, -1.0]), r"logprobs\[0\] is None"),
    "too few": (with_values(logprobs=np.zeros(2, np.float32)), "logprobs has 2 values for 4 tokens"),
    "entropy": (with_values(entropies=np.array([NAN, 1, 1, 1], np.float32)), r"entropies\[0\] is NaN"),
    "negative token": (with_values(tokens=np.array([1, -2, 3, 9], np.int32)), "tokens has -2, outside the vocabulary"),
    "unknown token": (with_values(tokens=np.array([1, 10, 3, 9], np.int32)), "tokens has 10, outside the vocabulary"),
    "huge token": (with_values(tokens=np.array([1, 1 << 40, 3, 9])), "does not fit 32 bits"),
    "floats": (with_values(tokens=np.array([1.5, 2, 3, 9])), "tokens is .*whole numbers"),
    "nested": (with_values(tokens=np.ones((2, 2), np.int32)), "1 dimension"),
    "ragged": (with_values(tokens=[[1], [2, 3], [4], [5]]), "1 dimension"),
    "version": (with_values(policy_version=None), "policy_version is None"),
    "negative version": (with_values(policy_version=-1), "policy_version is -1"),
    "huge version": (with_values(policy_version=1 << 63), "policy_version is 9223372036854775808"),
    "seed": (with_values(seed=1.5), "seed is 1.5"),
    "cached": (with_values(cached_tokens=-1), "cached_tokens is -1"),
    "top": (with_values(top=5), "top is 5; give an engine.base.TopLogprobs"),
    "shape of top": (
        with_values(top=TopLogprobs(np.ones((4, 2), np.int32), np.zeros((4, 1), np.float32))),
        "top has tokens of shape",
    ),
    "NaN in top": (
        with_values(top=TopLogprobs(np.ones((4, 1), np.int32), np.full((4, 1), NAN, np.float32))),
        r"top\.logprobs\[0, 0\] is nan",
    ),
}


class Faulty(SmallWorld):
    """An engine whose first `count` responses for a prompt are bad; the prompt ends with the number of its task."""

    def __init__(self, change: Callable[[Segment], Any], *, tasks: set[int], count: int = 1 << 30) -> None:
        super().__init__()
        self.change, self.tasks_, self.count = change, tasks, count
        self.requests = 0
        self.chat = SimpleNamespace(**vars(self.chat) | {"prompt": lambda text: np.array([1, int(text[-1])], np.int32)})

    def reset(self, task: Task, seed: int) -> Any:
        episode = super().reset(task, seed)
        episode.observation = f"task {task.task_id[-1]}"
        return episode

    async def generate(self, request: Request) -> Any:
        segment = await super().generate(request)
        if int(request.tokens[1]) in self.tasks_ and self.count:
            self.count -= 1
            self.requests += 1
            return self.change(segment)
        return segment


def test_a_good_segment_is_taken_as_it_is_stored() -> None:
    request = Request(np.array([1], np.int32), 3, arl.engine.Sampling(max_tokens=4))
    segment = checked_segment(Segment([1, 2], [-0.5, -0.25], None, "stop", np.int64(3), 3), request, 10)  # type: ignore[arg-type]
    assert (segment.tokens.dtype, segment.logprobs.dtype, type(segment.policy_version)) == (np.int32, np.float32, int)
    aborted = Segment(np.empty(0, np.int32), np.empty(0, np.float32), None, "abort", 0, 3)
    assert len(checked_segment(aborted, request, 10).tokens) == 0
    with pytest.raises(DataError, match="give at least one token, or finish_reason='abort'"):
        replace(aborted, finish_reason="stop")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokens", [1 << 70, 1], f"tokens[0] is {1 << 70}, beyond 64 bits; give an array of whole numbers"),
        (
            "tokens",
            [1, 10**5000],
            "tokens[1] is int with too many digits to print, beyond 64 bits; give an array of whole",
        ),
        ("tokens", [1, None], "tokens[1] is None; give an array of whole numbers"),
        ("tokens", [1 << 63, -1], "tokens is of shape (2,) and dtype float64; give an array of whole numbers"),
        ("logprobs", [-0.5, -(1 << 70)], f"logprobs[1] is {-(1 << 70)}, beyond 64 bits; give an array of floats"),
        ("logprobs", [-1, Fraction(-1, 2)], "logprobs[1] is Fraction(-1, 2); give an array of floats"),
        (
            "entropies",
            np.array([np.float64(1.5), None]),
            "entropies[1] is None; give an array of floats with 1 dimension",
        ),
    ],
)
def test_the_first_wrong_entry_of_a_segment_is_named(name: str, values: Any, message: str) -> None:
    request = Request(np.array([1], np.int32), 3, arl.engine.Sampling(max_tokens=4))
    good = Segment(np.array([1, 2], np.int32), np.array([-0.5, -0.25], np.float32), None, "stop", 0, 3)
    with pytest.raises(DataError, match=f"^Segment: {re.escape(message)}"):
        checked_segment(with_values(**{name: values})(good), request, 10)


@pytest.mark.parametrize("name", BAD_SEGMENTS)
def test_a_bad_response_drops_only_its_group_and_the_run_can_restart(name: str, tmp_path: Any) -> None:
    change, message = BAD_SEGMENTS[name]
    world = Faulty(change, tasks={1})
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=4)
        with pytest.warns(AgentRLWarning, match=rf"\(task 'train 1'\), which is left out: DataError: .*{message}"):
            batch = collect(tasks=4, group_size=2)
        drawn = batch.texts("task_id", "draw")
        assert sorted(drawn) == [f"train {number}" for number in (0, 0, 2, 2, 3, 3)]
        assert batch.state["broken_down"]["failed"] == 2
        collect.end_iteration(recipes.GRPO.credit(batch), {})
    assert world.requests >= 3, "a request is retried twice"
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(SmallWorld(), SmallWorld(), recipes.GRPO, store=store, task_pool=4)
        assert collect(tasks=4, group_size=2).num_draws == 8


def test_a_bad_response_is_retried_and_is_not_in_the_log(tmp_path: Any) -> None:
    change, _ = BAD_SEGMENTS["NaN"]
    world = Faulty(change, tasks={0, 1, 2, 3}, count=2)
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=4)
        assert collect(tasks=4, group_size=2).num_draws == 8
    broken = Faulty(change, tasks={0, 1, 2, 3})
    with arl.Store.open(tmp_path / "broken") as store:
        collect = arl.Collector(broken, broken, recipes.GRPO, store=store, task_pool=4)
        with pytest.warns(AgentRLWarning) as caught_warnings:
            batch = collect(tasks=4, group_size=2)
        assert batch.num_draws == 0
        messages = [str(each.message) for each in caught_warnings]
        assert any("logprobs[1] is NaN" in each and "(task 'train 0')" in each for each in messages)
        assert "iteration 0 has no draws" in messages[-1]
        collect.end_iteration(recipes.GRPO.credit(batch), {})
    with arl.Store.open(tmp_path / "broken") as store:
        mended = SmallWorld()
        mended.chat = broken.chat
        mended.reset = broken.reset  # type: ignore[method-assign]
        again = arl.Collector(mended, mended, recipes.GRPO, store=store, task_pool=4)
        assert again(tasks=4, group_size=2).num_draws == 8, "the rollout log holds nothing that stops the run"


def test_an_error_of_the_engine_is_another_class() -> None:
    assert issubclass(DataError, InvalidInputError)
    assert not issubclass(EngineError, DataError)


BAD_OUTCOMES: Mapping[str, tuple[dict[str, Any], str]] = {
    "infinite reward": ({"reward": INF}, "StepResult.reward is inf"),
    "reward of 64 bits": ({"reward": 1e300}, "StepResult.reward is 1e\\+300"),
    "reward too large for a float": ({"reward": 10**400}, "StepResult.reward is 1000"),
    "text": ({"reward": "1"}, "StepResult.reward is '1'"),
    "flags": ({"flags": 1 << 32}, "StepResult.flags is 4294967296"),
    "fact": ({"facts": {"number": 1e300}}, "the fact 'number' is 1e\\+300"),
    "infinite fact": ({"facts": {"number": -INF}}, "the fact 'number' is -inf"),
    "surrogate fact": ({"facts": {"key": "\ud800"}}, "the fact 'key' is .*not Unicode"),
    "info": ({"info": {"value": {1, 2}}}, "StepResult.info cannot be saved as JSON"),
    "info object": ({"info": {"value": object()}}, "StepResult.info cannot be saved as JSON"),
    "observation": ({"observation": "\udc80", "terminated": False}, "StepResult.observation is .*not Unicode"),
    "message": (
        {"observation": [{"role": "user", "content": "\udc80"}], "terminated": False},
        "StepResult.observation is .*not Unicode",
    ),
    "tools": (
        {"observation": "x", "terminated": False, "context": Context(replaces_history=True, tools=[{"a": {1}}])},
        "tools cannot be saved as JSON",
    ),
    "no lane": (
        {"observation": "x", "terminated": False, "context": Context(conversation=7)},
        "names conversation 7, but the episode has 1",
    ),
}


@pytest.mark.parametrize("name", BAD_OUTCOMES)
def test_a_bad_outcome_costs_its_group(name: str, tmp_path: Any) -> None:
    values, message = BAD_OUTCOMES[name]

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        if task.task_id == "train 1":
            return StepResult(**({"reward": 1.0, "terminated": True} | values))
        return paying(task, seed, actions)

    world: Any = SmallWorld(answer)
    world.facts = {"number": ExtraColumn("step"), "key": ExtraColumn("trajectory", "key")}
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=4)
        with pytest.warns(AgentRLWarning, match=rf"train 1'\), which is left out: DataError: .*{message}"):
            batch = collect(tasks=4, group_size=2)
        assert sorted(set(batch.texts("task_id", "draw"))) == ["train 0", "train 2", "train 3"]
        collect.end_iteration(recipes.GRPO.credit(batch), {})
        assert collect(tasks=4, group_size=2).num_groups == 3


def test_rewards_whose_sum_does_not_fit_cost_their_group() -> None:
    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        del seed
        reward = 3e38 if task.task_id == "train 1" else 1.0
        return StepResult("go on", reward=reward) if len(actions) < 2 else StepResult(reward=reward, terminated=True)

    world = SmallWorld(answer)
    with pytest.warns(AgentRLWarning, match=r"train 1'\), which is left out: .* add up to 6e\+38"):
        batch = arl.Collector(world, world, recipes.GRPO, task_pool=4)(tasks=4, group_size=2)
    assert batch.num_groups == 3


def test_an_environment_that_refuses_a_task_costs_its_group() -> None:
    world = SmallWorld()
    begin = world.reset

    def reset(task: Task, seed: int) -> Any:
        if task.task_id == "train 1":
            arl.env.Image("/nowhere/picture.png")
        return begin(task, seed)

    world.reset = reset  # type: ignore[method-assign]
    with pytest.warns(AgentRLWarning, match=r"train 1'\), which is left out: DataError: Image: .* cannot be read"):
        batch = arl.Collector(world, world, recipes.GRPO, task_pool=4)(tasks=4, group_size=2)
    assert batch.num_groups == 3


class Long(SmallWorld):
    """An environment in which the prompt of one task is longer than the context."""

    def __init__(self) -> None:
        super().__init__()
        self.chat = SimpleNamespace(
            **vars(self.chat) | {"prompt": lambda text: np.ones(100 if text.endswith("1") else 3, np.int32)}
        )

    def reset(self, task: Task, seed: int) -> Any:
        episode = super().reset(task, seed)
        episode.observation = task.task_id
        return episode


def test_a_prompt_that_is_too_long_costs_its_group(tmp_path: Any) -> None:
    world = Long()
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=4, context_tokens=50)
        with pytest.warns(AgentRLWarning, match=r"group 0.\d \(task 'train 1'\).*context_tokens=50 is too small"):
            batch = collect(tasks=4, group_size=2)
        assert batch.num_groups == 3
        collect.end_iteration(recipes.GRPO.credit(batch), {})
        assert collect(tasks=4, group_size=2).num_groups == 3, "the same task is not warned of twice"
        with pytest.warns(AgentRLWarning, match="task 'held_out 1'"):
            evaluation = collect.evaluate(tasks=3)
    assert evaluation.samples.tolist() == [1, 1, 1]


def test_an_iteration_without_draws_is_reported_each_time() -> None:
    world = Long()
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=1, context_tokens=50)
    batch = collect(tasks=1, group_size=2)
    collect.end_iteration(recipes.GRPO.credit(batch), {})
    world.chat.prompt = lambda text: np.ones(100, np.int32)  # noqa: ARG005
    for iteration in (1, 2):
        with pytest.warns(AgentRLWarning) as caught_warnings:
            batch = collect(tasks=1, group_size=2)
        assert batch.num_draws == 0
        assert f"iteration {iteration} has no draws" in str(caught_warnings[-1].message)
        assert "2 trajectories failed" in str(caught_warnings[-1].message)
        collect.end_iteration(batch, {})


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Task("a", "?", "x", None), Task("b\ud800", "?", "x", None)], r"tasks\(.*\)\[1\] has task_id .*not Unicode"),
        ([Task("a", "?\udfff", "x", None)], r"tasks\(.*\)\[0\] has question .*not Unicode"),
        (
            [Task("a", "?", "x", None), Task("a", "other", "x", None)],
            r"tasks\(.*\)\[1\] has the id of another task, 'a'",
        ),
        ([Task("a", "?", "x", 1), Task("a", "?", "x", 2)], r"has the id of another task, 'a'"),
        ([Task("a", "?", "x", None, solution="text")], r"has solution 'text' \(task 'a'\); give a list of texts"),
        ([Task("a", None, "x", None)], r"tasks\(.*\)\[0\] has question None; give a text"),  # type: ignore[arg-type]
        ([Task("a", "?", "x", None), Task("", "?", "x", None)], r"tasks\(.*\)\[1\] has task_id ''; give a name"),
        ([Task(" \n", "?", "x", None)], r"tasks\(.*\)\[0\] has task_id ' \\n'; give a name"),
        (
            [Task("a", "?", "x", np.arange(3)), Task("a", "?", "x", np.arange(1, 4))],
            r"tasks\(.*\)\[1\] has the id of another task, 'a'",
        ),
        (
            [Task("a", "?", "x", None, solution=["1"]), Task("a", "?", "x", None, solution=["2"])],
            r"tasks\(.*\)\[1\] has the id of another task, 'a'",
        ),
    ],
)
def test_tasks_are_checked_wherever_they_are_taken(tasks: list[Task], message: str) -> None:
    world = SmallWorld()
    world.tasks = lambda count, split="train", start=0: tasks[start : start + count]  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(DataError, match=message):
        arl.Collector(world, world, recipes.GRPO, task_pool=len(tasks))(tasks=1, group_size=2)
    with pytest.raises(DataError, match=message):
        evaluate(world, world, tasks=len(tasks))
    with pytest.raises(InvalidInputError, match=message.replace(r"tasks\(\)", rf"tasks\({len(tasks)}\)")):
        arl.env.check(world, tasks=len(tasks))


class Generated(Sequence[Task]):
    """Tasks that are not a list, like those generated on demand."""

    def __init__(self, tasks: list[Task]) -> None:
        self.items = tasks

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: Any) -> Any:
        return Generated(self.items[place]) if isinstance(place, slice) else self.items[place]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (Task("", "?", "x", None), "a selected task has task_id ''"),
        (Task("a", "other", "x", None), "a selected task has the id of another task, 'a'"),
    ],
)
def test_generated_tasks_are_checked_once_they_are_selected(last: Task, message: str) -> None:
    world = SmallWorld()
    tasks = Generated([Task("a", "?", "x", None), last])
    world.tasks = lambda count, split="train", start=0: tasks  # type: ignore[method-assign,assignment,return-value]  # noqa: ARG005
    with pytest.raises(DataError, match=message):
        arl.Collector(world, world, recipes.GRPO, task_pool=2)(tasks=2, group_size=2)
    with pytest.raises(DataError, match=message):
        evaluate(world, world, tasks=2)


@pytest.mark.parametrize("tasks", [None, {"a": 1}, "ab", iter(()), [], ()])
def test_an_invalid_or_empty_sequence_of_tasks_is_refused(tasks: Any) -> None:
    world = SmallWorld()
    world.tasks = lambda count, split="train", start=0: tasks  # type: ignore[method-assign]  # noqa: ARG005
    message = "environment SmallWorld: .*; (return|give)"
    with pytest.raises(DataError, match=message):
        arl.Collector(world, world, recipes.GRPO, task_pool=2)(tasks=2, group_size=2)
    with pytest.raises(DataError, match=message):
        evaluate(world, world, tasks=2)


def test_an_evaluation_of_fewer_tasks_is_refused() -> None:
    world = SmallWorld()
    world.tasks = lambda count, split="train", start=0: [Task("a", "?", "x", None)]  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(
        InvalidInputError, match="tasks=2, but environment 'world' has 1 tasks of split 'held_out'; give at most 1"
    ):
        evaluate(world, world, tasks=2)


def test_a_task_that_is_given_several_times_is_one_task() -> None:
    """Repeated tasks: statistics are in all rows of a task, and an evaluation counts all of its rollouts."""
    world = SmallWorld()
    tasks = [Task(name, "?", "x", math.nan + 0) for name in ("a", "b", "a", "a")]
    world.tasks = lambda count, split="train", start=0: tasks[start : start + count]  # type: ignore[method-assign]  # noqa: ARG005
    evaluation = evaluate(world, world, tasks=4, samples=2)
    assert evaluation.task_ids == ["a", "b"]
    assert evaluation.samples.tolist() == [6, 2]
    assert (evaluation.successes <= evaluation.samples).all()
    assert evaluation.successes.sum() == (evaluation.batch.column("success", "draw") == 1).sum() > 0
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=4)
    collect.end_iteration(recipes.GRPO.credit(collect(tasks=4, group_size=2)), {})
    assert collect._known_pool(collect._now().tasks).column("attempts").tolist() == [6, 2, 6, 6]


def test_environments_of_an_evaluation_have_no_task_in_common() -> None:
    world = SmallWorld()
    collect = arl.Collector(world, {"one": SmallWorld(), "two": SmallWorld()}, recipes.GRPO)
    with pytest.raises(InvalidInputError, match="environments 'one' and 'two' both have a task 'held_out 0'"):
        collect.evaluate(tasks=2)


def test_another_data_set_is_refused_after_a_restart(tmp_path: Any) -> None:
    async def interrupted(_: Request) -> Segment:
        raise KeyboardInterrupt

    def collector(store: arl.Store, name: str, payload: Any = None, **options: Any) -> arl.Collector:
        world = SmallWorld()
        world.tasks = lambda count, split="train", start=0: [  # type: ignore[method-assign]  # noqa: ARG005
            Task(f"{name} {number}", "?", "x", payload) for number in range(start, start + count)
        ]
        return arl.Collector(world, world, recipes.GRPO, store=store, **{"task_pool": 4} | options)

    with arl.Store.open(tmp_path) as store:
        stopped = collector(store, "first")
        stopped.engines["policy"].generate = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            stopped(tasks=2, group_size=2)
    for committed in (False, True):  # before the first iteration was closed
        with arl.Store.open(tmp_path) as store:
            other = collector(store, "second")
            for _ in range(2):  # another call is not skipped
                with pytest.raises(InvalidInputError, match=r"tasks.world.first='first 0', not 'second 0'"):
                    other(tasks=2, group_size=2)
            if not committed:
                collector(store, "first")(tasks=np.int64(2), group_size=np.uint8(2))
    with arl.Store.open(tmp_path) as store:
        collect = collector(store, "first")
        collect.end_iteration(recipes.GRPO.credit(collect(tasks=2, group_size=2)), {})
    with arl.Store.open(tmp_path) as store:
        for other, message in (
            (collector(store, "second"), r"tasks.world.first='first 0', not 'second 0'"),
            (collector(store, "first", {"answer": 5}), "tasks.world.content="),
            (collector(store, "first", task_pool=3), "tasks.world.tasks=4, not 3"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                other(tasks=2, group_size=2)
        assert collector(store, "first")(tasks=2, group_size=2).num_draws == 4
    with arl.Store.open(tmp_path) as store:
        assert collector(store, "second", allow_changes=True)(tasks=2, group_size=2).num_draws == 4
