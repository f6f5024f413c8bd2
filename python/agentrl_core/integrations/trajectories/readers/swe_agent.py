"""Trajectories of SWE-agent: `history`, and the messages that were sent at each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    call_of,
    finished,
    hidden,
    is_messages,
    odd_message,
)
from agentrl_core.integrations.trajectories.readers.model_calls import RecordedCall, chats_of_calls

_KEPT = ("environment", "info", "replay_config")
_SENT = ("query", "messages")
_ELIDED = "what history processors left out of the contexts, since the steps do not hold what was sent"
_ABSENT = "the tools, which the log does not hold"


def recognised(value: object) -> bool:
    """Return whether a record is a trajectory of SWE-agent."""
    if not isinstance(value, Mapping) or not is_messages(value.get("history")):
        return False
    marks = ("message_type", "agent", "is_demo")
    return "trajectory" in value or any(name in message for message in value["history"] for name in marks)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield a chat for each agent of a trajectory, and for each history that does not continue an earlier one."""
    for record in records:
        row, where = record.mapping(), record.where
        if not is_messages(row.get("history")):
            odd = odd_message(row.get("history"), "history")
            raise InvalidInputError(f"{where}: {odd}; give a list of messages with a role")
        fields = {name: row[name] for name in _KEPT if row.get(name) is not None}
        if row.get("environment"):
            fields["task"] = str(row["environment"])
        agents = list(dict.fromkeys(message.get("agent") for message in row["history"]))
        for agent in agents:
            history = [message for message in row["history"] if message.get("agent") == agent]
            name = where if len(agents) == 1 else f"{where}, agent {agent!r}"
            steps = row.get("trajectory") or () if len(agents) == 1 else ()
            for chat in _chats(history, steps, hidden_reasoning, name):
                yield {**fields, **chat}


def _chats(
    history: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    hidden_reasoning: HiddenReasoning,
    where: str,
) -> Iterator[Message]:
    reasons: list[list[str]] = [[] for _ in history]
    messages = [
        _message(message, reasons[number], hidden_reasoning, f"{where}, message {number}")
        for number, message in enumerate(history)
    ]
    answers = [
        number
        for number, message in enumerate(messages)
        if message["role"] == "assistant" and not message.get("is_demo")
    ]
    contexts = [next((step[name] for name in _SENT if is_messages(step.get(name))), None) for step in steps]
    if len(contexts) == len(answers) and answers and all(contexts):
        calls = [
            RecordedCall(
                f"{where}, step {step}",
                [
                    _message(message, [], "omit", f"{where}, step {step}, message {number}")
                    for number, message in enumerate(context or ())
                ],
                messages[answer],
                reasons=reasons[answer],
            )
            for step, (context, answer) in enumerate(zip(contexts, answers, strict=True))
        ]
        for chat in chats_of_calls(calls):
            yield finished({**chat, "left_out": [_ABSENT]}, chat.pop("untrained", ()), where)
        return
    all_reasons = [text for each in reasons for text in each]
    yield finished({"messages": messages, "left_out": [_ABSENT, _ELIDED]}, all_reasons, where)


def _message(recorded: Mapping[str, Any], reasons: list[str], hidden_reasoning: HiddenReasoning, where: str) -> Message:
    """Return a message without the program's annotations; texts are as they were sent to the model."""
    message: Message = {"role": recorded["role"], "content": recorded.get("content") or ""}
    if recorded.get("is_demo"):
        message["is_demo"] = True
    if recorded.get("tool_calls"):
        message["tool_calls"] = []
        for place, call in enumerate(recorded["tool_calls"]):
            if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
                raise InvalidInputError(
                    f"{where}: tool_calls[{place}] is {call!r:.60}; give an object with an object 'function'"
                )
            function = call["function"]
            message["tool_calls"].append(
                call_of(call.get("id"), function.get("name"), function.get("arguments"), where)
            )
    identities = recorded.get("tool_call_ids") or ([recorded["tool_call_id"]] if recorded.get("tool_call_id") else [])
    if identities and message["role"] == "tool":
        message["tool_call_id"] = identities[0]
    blocks = recorded.get("thinking_blocks")
    if blocks:
        texts = [block.get("thinking") or "" for block in blocks if isinstance(block, Mapping)]
        if all(texts):
            message["reasoning_content"] = "\n".join(texts)
        else:
            hidden(message, reasons, where, hidden_reasoning, "its reasoning is encrypted")
    return message
