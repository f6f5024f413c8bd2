"""Trajectories in the ATIF format from other programs."""

import pytest
from chat_templates import CONTENT_ONLY, QUESTION, WITH_CALLS, answer, byte_tokenizer

from agentrl_core.exceptions import AgentRLError
from agentrl_core.integrations.trajectories import from_atif, from_chats, to_atif

EXACT = {"prompt_token_ids": [1, 2, 5], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.5]}


def trajectory(*steps):
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
    }


def user(message="how warm is it?", **fields):
    return {"source": "user", "message": message, **fields}


def agent(message, **fields):
    return {"source": "agent", "message": message, **fields}


@pytest.fixture
def exported():
    """The export of a chat that starts with a message of the role developer."""
    developer = {"role": "developer", "content": "Be brief."}
    [converted] = to_atif(
        from_chats([{"messages": [developer, QUESTION, answer("Cold.")]}], byte_tokenizer(CONTENT_ONLY))
    )
    return converted


def test_developer_message_has_a_source_of_atif(exported):
    """ATIF has only the sources system, user and agent."""
    assert {step["source"] for step in exported["steps"]} <= {"system", "user", "agent"}


def test_unknown_source_is_rejected(exported):
    first, *others = exported["steps"]
    with pytest.raises(AgentRLError):
        from_atif([{**exported, "steps": [{**first, "source": "environment"}, *others]}])


def test_null_is_the_same_as_a_missing_field():
    """`model_dump()` writes null for every field that was not recorded."""
    unknown = {"prompt_tokens": 9, "prompt_token_ids": None, "completion_token_ids": None, "logprobs": None}
    record = trajectory(user(metrics=None), agent("Cold.", tool_calls=None, metrics=unknown))
    batch = from_atif([record], byte_tokenizer(WITH_CALLS))
    assert len(batch.column("token", "token")) > 1


def test_agent_step_without_a_model_call_needs_no_token_ids():
    """A fixed command or a hand-over has llm_call_count 0."""
    fixed = agent("I open the window.", llm_call_count=0)
    batch = from_atif([trajectory(user(), fixed, agent("Cold.", metrics=EXACT))])
    assert batch.column("token", "token").tolist() == [3, 4]


def test_copied_context_survives_a_round_trip():
    batch = from_atif([trajectory(user(), agent("Cold.", is_copied_context=True), agent("Very.", metrics=EXACT))])
    assert batch.column("token", "token").tolist() == [3, 4]
    [back] = to_atif(batch)
    assert back["steps"][1].get("is_copied_context")
