"""Rollouts of Agent Lightning: the spans of its tracers, and the events of its server, with token ids and rewards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from agentrl_core.engine.chat_messages import from_json
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    finished,
    mask,
)
from agentrl_core.integrations.trajectories.readers.model_calls import RecordedCall, chats_of_calls
from agentrl_core.integrations.trajectories.readers.opentelemetry_calls import calls_of, is_call
from agentrl_core.integrations.trajectories.readers.opentelemetry_spans import RecordedSpan, is_span, spans_of

_OPERATION = "agentlightning.operation.output"
_PROMPTS = ("prompt_token_ids", f"{_OPERATION}.prompt_token_ids")
_RESPONSES = (
    "response_token_ids",
    f"{_OPERATION}.response_token_ids.0",
    f"{_OPERATION}.choices.0.token_ids",
    f"{_OPERATION}.choices.0.provider_specific_fields.token_ids",
)
_REWARD = re.compile(r"agentlightning\.reward\.(?:0\.value|primary)|reward")
_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
_FAILED = 400


def recognised(value: object) -> bool:
    """Return whether a record is a span or an event of a rollout."""
    return isinstance(value, Mapping) and "rollout_id" in value and (is_span(value) or _is_event(value))


def _is_event(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("event_type"), str) and isinstance(value.get("data"), Mapping)


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- ids hide none
    """Yield the calls of each attempt, as turns of one record if they have token ids, otherwise as chats.

    The last reward is the attempt's reward; earlier ones are listed in `earlier_rewards`.
    """
    first = next(records, None)
    if first is None:
        return
    all_records = chain([first], records)
    if _is_event(first.mapping()):
        attempts: dict[tuple[str, str], list[tuple[Mapping[str, Any], str]]] = {}
        for record in all_records:
            event = record.mapping()
            if not _is_event(event):
                refuse(record.where, "it is not an event with event_type and data", "give events alone")
            key = str(event.get("rollout_id")), str(event.get("attempt_id") or "")
            attempts.setdefault(key, []).append((event, record.where))
        for key, events in attempts.items():
            yield from _of_events(key, events)
        return
    traces: dict[tuple[str, str], list[RecordedSpan]] = {}
    for span in spans_of(all_records):
        traces.setdefault(span.trace, []).append(span)
    for key, spans in traces.items():
        yield from _of_spans(key, sorted(spans, key=lambda each: each.start))


def _of_spans(key: tuple[str, str], spans: Sequence[RecordedSpan]) -> Iterator[Message]:
    turns, calls, rewards = [], [], []
    for span in spans:
        reward = _reward(span)
        if reward is not None:
            rewards.append(reward)
            continue
        prompt, response = (_ids(span, names) for names in (_PROMPTS, _RESPONSES))
        if prompt and response:
            turn = {"prompt_token_ids": prompt, "completion_token_ids": response}
            values = from_json(span.attributes.get("logprobs.content"))
            if values:
                turn["logprobs"] = [value["logprob"] for value in values]
            turns.append(turn)
        elif is_call(span):
            calls += calls_of(span)
    yield from _records(key, turns, calls, rewards, spans[0].where)


def _of_events(key: tuple[str, str], events: Sequence[tuple[Mapping[str, Any], str]]) -> Iterator[Message]:
    turns, calls, rewards = [], [], []
    for event, where in events:
        data = event["data"]
        if event["event_type"] == "reward" and data.get("value") is not None:
            rewards.append(float(data["value"]))
        if event["event_type"] != "model_request" or data.get("status") == "error":
            continue
        if isinstance(data.get("http_status"), int) and data["http_status"] >= _FAILED:
            continue
        response = data.get("response") if isinstance(data.get("response"), Mapping) else {}
        choice = (response.get("choices") or [{}])[0]
        prompt = data.get("prompt_token_ids") or response.get("prompt_token_ids") or choice.get("prompt_token_ids")
        ids = data.get("response_token_ids") or choice.get("token_ids")
        if prompt and ids:
            turn = {"prompt_token_ids": prompt, "completion_token_ids": ids}
            listed = (choice.get("logprobs") or {}).get("content")
            values = data.get("response_log_probs") or ([value["logprob"] for value in listed] if listed else None)
            if values:
                turn["logprobs"] = values
            turns.append(turn)
            continue
        request, message = data.get("request") or {}, choice.get("message")
        if not isinstance(message, Mapping) or not isinstance(request.get("messages"), list):
            refuse(where, "the call of a model has neither token ids nor messages", "leave the attempt out")
        reasons: list[str] = []
        answer = {**message, "role": "assistant"}
        if choice.get("finish_reason") == "length":
            mask(answer, reasons, f"{where}: it was cut by a limit, so that its end was not sampled")
        calls.append(RecordedCall(where, request["messages"], answer, request.get("tools") or (), reasons))
    yield from _records(key, turns, calls, rewards, events[0][1])


def _records(
    key: tuple[str, str],
    turns: Sequence[Message],
    calls: Sequence[RecordedCall],
    rewards: Sequence[float],
    where: str,
) -> Iterator[Message]:
    rollout, attempt = key
    if turns and calls:
        refuse(where, f"{len(turns)} calls have token ids and {len(calls)} have texts alone", "record ids of all")
    known = {
        "task": rollout,
        "rollout_id": rollout,
        "attempt_id": attempt or None,
        "reward": rewards[-1] if rewards else None,
        "earlier_rewards": list(rewards[:-1]) or None,
    }
    known = {name: value for name, value in known.items() if value is not None}
    if turns:
        yield {**known, "turns": list(turns)}
    for chat in chats_of_calls(calls):
        yield finished({**known, **chat}, chat.pop("untrained", ()), where)


def _ids(span: RecordedSpan, names: Sequence[str]) -> list[int]:
    ids = next((span.attributes[name] for name in names if span.attributes.get(name)), None)
    return list(from_json(ids) or ())


def _reward(span: RecordedSpan) -> float | None:
    """Return the reward in a span, from its attributes or from a function's value recorded by AgentOps."""
    for name, value in span.attributes.items():
        if _REWARD.fullmatch(name) and isinstance(value, (int, float)):
            return float(value)
    for name in _OUTPUTS:
        output = from_json(span.attributes.get(name))
        if isinstance(output, Mapping) and output.get("type") == "reward" and output.get("value") is not None:
            return float(output["value"])
    return None
