"""An episode gets the reason why an action ended; an action cut by a limit is not a format error."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from small_world import END, SmallWorld

import agentrl_core as arl
from agentrl_core import env, recipes
from agentrl_core.data.table_codes import CODES
from agentrl_core.engine import Request, Sampling
from agentrl_core.env import Action, StepFlag, StepResult, Task
from agentrl_core.rollout import Group, Rollout, SelfPlay

CUT = Sampling(max_tokens=2)
WHOLE = Sampling(max_tokens=16)


def test_an_action_is_a_text_with_a_finish_reason() -> None:
    action = Action("look", "length")
    assert action == "look"
    assert {action: 1}["look"] == 1
    assert json.dumps(action) == '"look"'
    assert Action("look").finish_reason == "stop"
    for same in (pickle.loads(pickle.dumps(action)), copy.deepcopy(action)):
        assert (same, same.finish_reason, type(same)) == ("look", "length", Action)


class Watching(SmallWorld):
    """An episode that penalises each action as malformed and records why it ended; cut responses end at the limit."""

    def __init__(self, runs: str = "inline") -> None:
        self.seen: list[Any] = []
        self.runs = runs

        def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
            del task, seed
            self.seen.append(getattr(actions[-1], "finish_reason", None))
            flags = StepFlag.FORMAT_ERROR | StepFlag.TOOL_ERROR
            if len(actions) < 2:
                return StepResult("go on", flags=flags)
            return StepResult(reward=1.0, terminated=True, flags=flags)

        super().__init__(answer)

    async def generate(self, request: Request) -> Any:
        segment = await super().generate(request)
        most = request.sampling.max_tokens
        if len(segment.tokens) <= most:
            return segment
        return type(segment)(
            segment.tokens[:most], segment.logprobs[:most], segment.entropies[:most], "length", 0, request.seed
        )


@pytest.mark.parametrize("runs", ["inline", "thread"])
@pytest.mark.parametrize(("sampling", "reason"), [(CUT, "length"), (WHOLE, "stop")])
def test_an_episode_gets_why_the_action_ended(runs: str, sampling: Sampling, reason: str) -> None:
    world = Watching(runs)
    batch = arl.Collector(world, world, recipes.GRPO, sampling=sampling, task_pool=2)(tasks=2, group_size=2)
    assert set(world.seen) == {reason}
    flags = StepFlag.TOOL_ERROR if reason == "length" else StepFlag.FORMAT_ERROR | StepFlag.TOOL_ERROR
    assert set(batch.column("flags", "step").tolist()) == {flags}
    reasons = np.asarray(batch.nodes.column("finish_reason"))[np.asarray(batch.nodes.column("kind")) == 1]
    assert {CODES["finish_reason"][int(code)] for code in reasons} == {reason}


def test_a_replay_gives_the_same_reasons() -> None:
    class Forks(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = group.start_many(1)
            await branch.turn()
            await group.run([branch, branch.fork()])

    world = Watching()
    batch = arl.Collector(world, world, recipes.GRPO.replace(rollout=Forks()), sampling=CUT, task_pool=1)(
        tasks=1, group_size=2
    )
    assert batch.num_draws == 2
    assert world.seen == ["length"] * 4, "two turns of the first, and the first turn again and one more of the fork"


def test_agents_of_one_episode_get_reasons_too() -> None:
    reasons: list[str] = []

    class Both:
        observations: Mapping[str, str] = {"a": "begin", "b": "begin"}

        def __init__(self) -> None:
            self.over = False

        def turn_of(self) -> tuple[str, ...]:
            return () if self.over else ("a", "b")

        def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
            self.over = True
            reasons.extend(action.finish_reason for action in actions.values())  # type: ignore[attr-defined]
            return {name: StepResult(reward=1.0, terminated=True, flags=StepFlag.FORMAT_ERROR) for name in actions}

        def state_key(self) -> bytes:
            return b""

    world = Watching()
    world.reset = lambda task, seed: Both()  # type: ignore[method-assign]  # noqa: ARG005
    batch = arl.Collector(
        world, world, recipes.GRPO.replace(rollout=SelfPlay(agents=("a", "b"))), sampling=CUT, task_pool=1
    )(tasks=1, group_size=1)
    assert reasons == ["length", "length"]
    assert not batch.column("flags", "step").any()


def tools() -> env.ToolEnvironment:
    task = Task("sum", "What is 73 + 15?", "sums", "88")
    return env.ToolEnvironment([task], [env.Calculator()], lambda task, answer: float(answer == task.payload))


def test_a_tool_call_cut_by_the_token_limit_is_not_a_format_error() -> None:
    world = tools()
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "73+15"}}'
    [task] = world.tasks(1)
    complete, truncated = (world.reset(task, 0).step(Action(call, reason)) for reason in ("stop", "length"))
    assert (complete.flags, truncated.flags) == (StepFlag.FORMAT_ERROR, 0)
    assert truncated.observation == [
        {"role": "tool", "content": "the action was cut at the limit of its tokens; call the tool again, in fewer"}
    ]
    both = world.reset(task, 0).step(Action(f"{call}</tool_call>{call[:20]}", "length"))
    assert both.flags == StepFlag.TOOL_RESULT
    ends = [world.reset(task, 0).step(Action("88", reason)) for reason in ("stop", "length")]
    assert [(end.terminated, end.truncated, end.reward) for end in ends] == [(True, False, 1.0), (False, True, 1.0)]
    assert world.reset(task, 0).step("88").terminated, "a plain text is a whole action"


def test_form_is_not_lost_by_a_cut_in_reasoning_gym() -> None:
    world = env.ReasoningGym(["lcm"], seed=0, held_out=0, max_turns=2)
    [task] = world.tasks(1)
    shares = []
    for reason in ("stop", "length"):
        episode = world.reset(task, 0)
        episode.step(Action("I think", reason))
        shares.append(episode.step("<answer>1</answer>").facts["reward.format"])
    assert shares == [0.5, 1.0]


def test_end_is_a_stop_token() -> None:
    assert END in SmallWorld().chat.stop_token_ids
