"""Observations in other contexts: whole contexts, and several conversations of one episode."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from templates import QWEN, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import engine, env, recipes, rollout
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError

TOKENIZER = bytes_tokenizer(QWEN, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>")
STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")


class World:
    """An environment that answers each action with the next outcome of a list, and then ends."""

    runs = "inline"

    def __init__(self, *outcomes, last=None):
        self.outcomes = outcomes
        self.last = env.StepResult(reward=1.0, terminated=True, success=True) if last is None else last

    def tasks(self, count, *, split="train", start=0):
        return [env.Task(f"{split}/{number}", "q", "d", None) for number in range(start, start + count)]

    def reset(self, task, seed):
        del task, seed
        return Episode(self)


class Episode:
    observation = "begin"

    def __init__(self, world):
        self.left = [*world.outcomes, world.last]
        self.number = 0

    def step(self, action):
        del action
        self.number += 1
        return self.left.pop(0)

    def state_key(self):
        return str(self.number).encode()


class PromptRecorder(engine.Scripted):
    def __init__(self):
        super().__init__(TOKENIZER, lambda tokens: f"said {len(tokens)}")
        self.prompts = []

    async def generate(self, request):
        self.prompts.append(TOKENIZER.decode(request.tokens, skip_special_tokens=False))
        return await super().generate(request)


def played(*outcomes, program=None, last=None, **options):
    """Return the batch of an episode with these outcomes, and the contexts of the model."""
    model = PromptRecorder()
    recipe = recipes.GRPO if program is None else recipes.GRPO.replace(rollout=program)
    collect = arl.Collector(model, World(*outcomes, last=last), recipe, task_pool=1, **options)
    batch = collect(tasks=1, group_size=1)
    collect.close()
    return batch, model.prompts


def at(lane, *, whole=False, tools=None):
    return env.Context(lane, whole, tools)


def test_a_whole_context_replaces_the_history() -> None:
    batch, prompts = played(env.StepResult("so far: much", context=at(0, whole=True)), env.StepResult("and on"))
    assert batch.num_draws == 1
    assert "begin" not in prompts[1]
    assert prompts[2].startswith(prompts[1])
    assert "and on" in prompts[2].removeprefix(prompts[1])
    assert pl.DataFrame(batch.steps)["reward"].fill_nan(None).to_list() == [None, None, 1.0]
    [pack] = batch.plan([0], max_tokens=10_000)
    assert len(pack.cu_seqlens) == 3, "two contexts"


def test_lanes_are_trajectories_that_end_together() -> None:
    outcomes = [
        env.StepResult("other", context=at(1, whole=True)),
        env.StepResult("back", reward=0.25, context=at(0)),
        env.StepResult("third", context=at(2, whole=True)),
    ]
    batch, prompts = played(*outcomes)
    assert prompts[2].startswith(prompts[0]), "lane 0 goes on where it was"
    assert "other" not in prompts[2]
    assert batch.num_draws == 3
    # Rewards in all: 0.25 in lane 1, and 1 at the end, which is the last action of every lane.
    assert batch.column("reward", "draw").tolist() == [1.25] * 3
    steps = pl.DataFrame(batch.steps).group_by("trajectory_id", maintain_order=True)
    paid = [frame["reward"].fill_nan(None).to_list() for _, frame in steps]
    assert sorted(paid, key=str) == sorted([[None, 1.0], [1.25], [1.0]], key=str)
    assert pl.DataFrame(batch.trajectories)["episode_id"].n_unique() == 1


def beside(lane, observation, **options):
    return env.Context(lane, replaces_history=True, observation=observation, state_key=observation, **options)


def test_a_parallel_request_is_generated_once_before_its_turn() -> None:
    question = env.StepResult("second", context=at(1, whole=True), parallel_requests=[beside(2, "third")])
    batch, prompts = played(question, env.StepResult("third", context=at(2)), env.StepResult("on", context=at(1)))
    assert len(prompts) == 4, "the third is said once, before it is its turn"
    assert "third" in prompts[2]
    assert prompts[3].startswith(prompts[1])
    assert batch.num_draws == 3
    assert batch.column("reward", "draw").tolist() == [1.0] * 3


def test_a_parallel_answer_unused_at_the_end_is_the_last_of_its_conversation() -> None:
    batch, prompts = played(env.StepResult("second", context=at(1, whole=True), parallel_requests=[beside(2, "third")]))
    assert len(prompts) == 3
    assert batch.column("reward", "draw").tolist() == [1.0] * 3
    assert [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]] == ["finished"] * 3
    assert pl.DataFrame(batch.steps)["reward"].to_list() == [1.0] * 3


def test_a_lane_without_room_waits_until_it_ends_the_episode() -> None:
    outcomes = [
        env.StepResult("second", context=at(1, whole=True), parallel_requests=[beside(2, "x" * 400)]),
        env.StepResult("x" * 400, context=at(2, whole=True)),
    ]
    batch, prompts = played(*outcomes, context_tokens=300)
    assert len(prompts) == 2
    assert [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]] == ["truncated"] * 2


def test_an_action_may_have_fewer_tokens() -> None:
    few = replace(at(1, whole=True), max_tokens=2)
    batch, _ = played(env.StepResult("x", context=few, parallel_requests=[beside(2, "y", max_tokens=1)]))
    token_counts = pl.DataFrame(batch.nodes).drop_nulls("seed")["tokens"].list.len().to_list()
    assert sorted(token_counts)[:2] == [1, 2]
    assert len(token_counts) == 3
    assert max(token_counts) > 2, "in the first lane, which says nothing of it"


def test_tools_are_those_of_a_context() -> None:
    tool = {"type": "function", "function": {"name": "lookup", "description": "finds", "parameters": {}}}
    _, prompts = played(env.StepResult("look", context=at(1, whole=True, tools=[tool])))
    assert "lookup" not in prompts[0]
    assert "lookup" in prompts[1]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (env.StepResult("x", context=at(2, whole=True)), "names conversation 2, but the episode has 1"),
        (env.StepResult("x", context=at(1)), "start conversation 1 with replaces_history=True"),
        (env.StepResult("x", context=at(-1)), r"context\.conversation is -1 .*; give a whole number of at least 0"),
        (env.StepResult("x", context=3), "context is 3"),
        (
            env.StepResult("x", context=env.Context(max_tokens=0)),
            "max_tokens is 0 .*; give a whole number of at least 1",
        ),
        (
            env.StepResult("x", context=at(0), parallel_requests=3),
            "parallel_requests is 3 .*; give a list of env.Context, one for each conversation",
        ),
        (env.StepResult("x", context=at(0), parallel_requests=[None]), r"parallel_requests\[0\] is None"),
        (
            env.StepResult(
                "x", context=at(0), parallel_requests=[env.Context(3, replaces_history=True, observation="y")]
            ),
            "names conversation 3, but",
        ),
        (
            env.StepResult("x", context=at(0), parallel_requests=[env.Context(1, observation=3)]),
            r"parallel_requests\[0\]\.observation is 3",
        ),
    ],
    ids=[
        "a gap",
        "nothing to go on from",
        "negative",
        "no context",
        "no token",
        "no lanes",
        "nobody",
        "a gap beside",
        "nothing said",
    ],
)
def test_contexts_that_cannot_be_are_refused(outcome, message) -> None:
    with pytest.warns(AgentRLWarning, match=message), pytest.warns(AgentRLWarning, match="has no draws"):
        batch, _ = played(outcome)
    assert batch.num_draws == 0


def test_a_context_overflow_truncates_every_conversation() -> None:
    batch, prompts = played(env.StepResult("x" * 400, context=at(1, whole=True)), context_tokens=300)
    assert len(prompts) == 1
    assert [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]] == ["truncated"]
    outcomes = [env.StepResult("other", context=at(1, whole=True)), env.StepResult("x" * 400, context=at(0))]
    batch, _ = played(*outcomes, context_tokens=300)
    assert [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]] == ["truncated"] * 2


class Forking(rollout.Rollout):
    async def branch(self, branch):
        await branch.turn()
        with pytest.raises(InvalidInputError, match="has 2 conversations, so it cannot be forked"):
            branch.fork()
        with pytest.raises(InvalidInputError, match="cannot be rolled back"):
            branch.rollback(branch.end)
        branch.stop("enough")


def test_an_episode_of_several_lanes_is_not_forked() -> None:
    outcome = env.StepResult("other", context=at(1, whole=True))
    batch, _ = played(outcome, program=Forking())
    assert [STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"]] == ["pruned"] * 2


def test_an_answer_with_a_context_is_kept_as_it_is() -> None:
    from agentrl_core.collect.rollout_log import read_answer, write_answer
    from agentrl_core.env.step_record import StepRecord

    answer = StepRecord(env.StepResult("x", context=at(1, whole=True, tools=[{"type": "function"}])), b"state")
    assert read_answer(write_answer(answer)) == answer
    plain = StepRecord(replace(answer.outcome, context=None), b"state")
    assert read_answer(write_answer(plain)) == plain
