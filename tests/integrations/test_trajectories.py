"""Chats, traces of verifiers and ATIF, in and out: fields of a format come back, and other fields are refused."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from riddles import TOKENIZER
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import (
    from_atif,
    from_chats,
    from_verifiers,
    to_atif,
    to_chats,
    to_verifiers,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
CHATS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "count"},
            {"role": "user", "content": "1 + 2"},
            {"role": "assistant", "content": "I add"},
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": "3"},
        ],
        "task": "sum",
        "group": "sum",
        "reward": 1.0,
        "success": True,
        "step_rewards": [0.25, 0.75],
        "licence": "none",
    },
    {
        "messages": [{"role": "user", "content": "1 + 2"}, {"role": "assistant", "content": "4"}],
        "task": "sum",
        "group": "sum",
        "reward": 0.0,
        "success": False,
    },
]


def collected() -> arl.Batch:
    """Return rollouts of two turns with a tool between them, as tokens."""
    world = SmallWorld()
    return arl.Collector(world, world, recipes.GRPO)(tasks=2, group_size=6)


def same(actual: arl.Batch, expected: arl.Batch) -> None:
    for level, names in (
        ("token", ("token", "behaviour_logprob", "position")),
        ("draw", ("reward",)),
        ("step", ("reward",)),
    ):
        for name in names:
            np.testing.assert_allclose(actual.column(name, level), expected.column(name, level), rtol=1e-6)
    assert actual.keys("group_id", "draw").tolist() == expected.keys("group_id", "draw").tolist()
    assert actual.contexts().tokens.tolist() == expected.contexts().tokens[: len(actual.contexts().tokens)].tolist()


def test_chats_come_back_as_they_went() -> None:
    batch = from_chats(copy.deepcopy(CHATS), TOKENIZER)
    back = list(to_chats(batch))
    for chat, before in zip(back, CHATS, strict=True):
        assert {**chat, "group": "sum"} == before
    assert len({chat["group"] for chat in back}) == 1
    assert np.isnan(batch.column("behaviour_logprob", "token")).all()
    assert pl.DataFrame(batch.trajectories)["origin"].unique().to_list() == [3]  # imported
    # Every token is as in the template, and the answers with their stop token are the actions.
    text = TOKENIZER.apply_chat_template(CHATS[0]["messages"], tokenize=False)
    contexts = batch.contexts()
    first = contexts.tokens[: contexts.offsets[1]].tolist()
    assert TOKENIZER.decode(first).strip() == text.strip()
    bounds = batch.offsets("token")
    answers = [
        TOKENIZER.decode(batch.column("token", "token")[a:b], skip_special_tokens=True) for a, b in pairwise(bounds)
    ]
    assert answers == ["I add", "3", "4"]
    assert batch.column("reward", "step").tolist()[:2] == [0.25, 0.75]


def test_imported_rows_train_without_logprobs() -> None:
    batch = recipes.GRPO.credit(from_chats(CHATS, TOKENIZER))
    # Rewards 1 and 0: +-0.5 / sqrt(0.5).
    np.testing.assert_allclose(batch.column("advantage", "draw"), [0.5**0.5, -(0.5**0.5)], rtol=1e-5)


@pytest.mark.parametrize(("out", "into"), [(to_atif, from_atif), (to_verifiers, from_verifiers)])
def test_generated_tokens_come_back_with_their_logprobs(out: Any, into: Any) -> None:
    batch = collected()
    records = list(out(batch, TOKENIZER))
    assert len(records) == 12
    back = into(records)
    same(back, batch)
    assert list(out(back)) == [{**record} for record in out(back)]
    again = into(list(out(back)))
    same(again, batch)


@pytest.mark.parametrize(("out", "into"), [(to_atif, from_atif), (to_verifiers, from_verifiers)])
def test_chats_go_through_the_other_formats(out: Any, into: Any) -> None:
    batch = from_chats(CHATS, TOKENIZER)
    back = into(list(out(batch)))
    same(back, batch)
    for chat, expected in zip(to_chats(back), CHATS, strict=True):
        assert chat["messages"] == expected["messages"]


def test_exported_atif_validates_with_the_atif_package() -> None:
    atif = pytest.importorskip("atif", reason="atif is installed by `make test`")
    chat = {
        "messages": [
            {"role": "user", "content": "1 + 2"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "assistant", "content": "3"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        "reward": 1.0,
    }
    metrics = [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25]},
        {"prompt_token_ids": [1, 2, 3, 4, 5], "completion_token_ids": [6], "logprobs": [-0.125]},
    ]
    (record,) = to_atif(from_chats([{"messages": chat["messages"][:1] + chat["messages"][3:]}], TOKENIZER))
    atif.Trajectory.model_validate(record)
    record["agent"]["tool_definitions"] = chat["tools"]
    record["steps"] = [
        {"step_id": 1, "source": "user", "message": "1 + 2"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1, "b": 2}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "3"}]},
            "metrics": metrics[0],
        },
        {"step_id": 3, "source": "agent", "message": "3", "metrics": metrics[1], "extra": {"reward": 0.5}},
    ]
    atif.Trajectory.model_validate(record)
    batch = from_atif([record])
    assert batch.column("token", "token").tolist() == [3, 4, 6]
    assert batch.column("behaviour_logprob", "token").tolist() == [-0.5, -0.25, -0.125]
    (again,) = to_atif(batch)
    atif.Trajectory.model_validate(again)
    assert again["agent"] == record["agent"]
    for step, before in zip(again["steps"], record["steps"], strict=True):
        assert {name: value for name, value in step.items() if name != "metrics"} == {
            name: value for name, value in before.items() if name != "metrics"
        }
        assert before.get("metrics", {}).items() <= step.get("metrics", {}).items()
    (exported_chat,) = to_chats(batch)
    assert exported_chat["messages"] == chat["messages"]


def test_branches_of_a_trace_are_contexts_of_one_trajectory() -> None:
    def node(parent: int | None, tokens: list[int], sampled: int = 0) -> dict[str, Any]:
        role = "assistant" if sampled else "user"
        return {
            "parent": parent,
            "message": {"role": role, "content": str(tokens)},
            "sampled": bool(sampled),
            "token_ids": tokens,
            "mask": [False] * (len(tokens) - sampled) + [True] * sampled,
            "logprobs": [-0.5] * sampled,
        }

    # Two questions after one system prompt, like a main agent and its helper; the second is answered twice.
    trace = {
        "version": 1,
        "task": {"type": "T", "data": {}, "key": "t"},
        "nodes": [
            node(None, [1, 2]),
            node(0, [3, 4], 1),
            node(0, [5]),
            node(2, [6, 7, 8], 2),
            node(3, [9]),
            node(4, [10], 1),
        ],
        "rewards": {"right": {"score": 0.5, "weight": 2.0}, "short": {"score": 1.0, "weight": 0.5}, "late": None},
    }
    batch = from_verifiers([trace])
    assert batch.column("token", "token").tolist() == [4, 7, 8, 10]
    assert batch.column("reward", "draw").tolist() == [1.5]
    assert batch.column("reward.short", "draw").tolist() == [0.5]
    contexts = batch.contexts()
    assert [contexts.tokens[a:b].tolist() for a, b in pairwise(contexts.offsets)] == [
        [1, 2, 3, 4],
        [1, 2, 5, 6, 7, 8, 9, 10],
    ]
    assert list(to_verifiers(batch)) == [trace]
    with pytest.raises(UnsupportedError, match="ATIF has one list"):
        list(to_atif(batch))


def test_exported_traces_contain_the_advantages() -> None:
    batch = recipes.GRPO.credit(collected())
    advantages = [
        value
        for record in to_verifiers(batch, TOKENIZER)
        for node in record["nodes"]
        for value in node.get("advantages", ())
    ]
    np.testing.assert_allclose(advantages, batch.column("advantage", "token"))
    assert np.abs(advantages).max() > 0


def test_records_that_cannot_be_converted_are_refused() -> None:
    step = {"step_id": 1, "source": "user", "message": "hi"}
    agent = {"step_id": 2, "source": "agent", "message": "yo"}
    exact = {"prompt_token_ids": [1], "completion_token_ids": [2]}
    shell = {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}}
    for record, error, message in (
        ({"schema_version": "2"}, InvalidInputError, "schema_version is '2'; give a trajectory in ATIF-v1"),
        ({**shell, "steps": [step, agent]}, InvalidInputError, "no token ids; give tokenizer="),
        (
            {**shell, "steps": [step, {**agent, "metrics": exact}, agent]},
            InvalidInputError,
            "trajectory 0, step 3 lacks .*1 of 2 steps of the agent",
        ),
        ({**shell, "subagent_trajectories": [{}]}, UnsupportedError, "has subagent_trajectories"),
        ({**shell, "steps": [{**step, "message": [{"type": "image"}]}]}, UnsupportedError, "part of type .text."),
    ):
        with pytest.raises(error, match=message):
            from_atif([record])
    with pytest.raises(InvalidInputError, match="trace 0: version is 7"):
        from_verifiers([{"version": 7}])
    relay = {"parent": None, "message": {"role": "assistant", "content": "a"}, "sampled": True}
    with pytest.raises(InvalidInputError, match="node 0 of trace 0 was sampled and has no token ids"):
        from_verifiers([{"version": 1, "nodes": [relay]}])
    with pytest.raises(InvalidInputError, match="chat 0: messages is "):
        from_chats([{}], TOKENIZER)
    with pytest.raises(InvalidInputError, match="no turn that the policy took"):
        from_chats([{"messages": [{"role": "user", "content": "a"}]}], TOKENIZER)
    with pytest.raises(InvalidInputError, match="tokens but no messages; give tokenizer="):
        list(to_chats(collected()))
