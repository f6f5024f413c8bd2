"""Events of OpenHands: `trajectory.json`, `output.jsonl` and the events of its SDK.

A condensation begins another chat. It names the events that the model no longer reads, and the position of the summary.
Answers that stay in the history are only context in that chat, since they are trained in the previous one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    RECORD,
    HiddenReasoning,
    Message,
    call_of,
    finished,
    hidden,
    mask,
    result_of,
    text_of,
    tool_schema,
)
from agentrl_core.integrations.trajectories.readers.openhands_condensation import Condensed, Event, condensation_of

_KINDS = ("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent")
_REPLIES = ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent")
_TOKENS = "TokenEvent"
_NOT_READ_BY_THE_MODEL = (
    "ACPToolCallEvent",
    "CondensationRequest",
    "ConversationErrorEvent",
    "ConversationStateUpdateEvent",
    "HookExecutionEvent",
    "InterruptEvent",
    "LLMCompletionLogEvent",
    "PauseEvent",
    "StreamingDeltaEvent",
)
_STATES = ("recall", "change_agent_state", "condensation_request")
_EXACT = "what the program adds to the replies of tools before the model reads them"


def recognised(value: object) -> bool:
    """Return whether a record is an event of OpenHands, or has a history of events."""
    if not isinstance(value, Mapping):
        return False
    history = value.get("history")
    if isinstance(history, list):
        events = [each for entry in history[:3] for each in (entry if isinstance(entry, list) else [entry])]
        return any(_is_event(event) for event in events)
    return _is_event(value)


def _is_event(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    old = "source" in value and ("action" in value or "observation" in value)
    return value.get("kind") in _KINDS or old


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield the chats of each record with a history, or of a file of events; each condensation begins another chat."""
    first = next(records, None)
    if first is None:
        return
    if not isinstance(first.mapping().get("history"), list):
        yield from _chats([(each.mapping(), each.where) for each in chain([first], records)], hidden_reasoning)
        return
    for record in chain([first], records):
        row = record.mapping()
        history = row.get("history")
        if not isinstance(history, list):
            raise InvalidInputError(
                f"{record.where}: history is {history!r:.60}; give a list of the events of the session"
            )
        flat = [event for entry in history for event in (entry if isinstance(entry, list) else [entry])]
        events = [(event, f"{record.where}, event {number}") for number, event in enumerate(flat)]
        if bad := next(
            (f"{where} is {event!r:.60}" for event, where in events if not isinstance(event, Mapping)), None
        ):
            raise InvalidInputError(f"{bad}; give an object")
        known = {name: value for name, value in row.items() if name != "history"}
        if not events:
            raise InvalidInputError(f"{record.where}: history is empty; leave the record out")
        for chat in _chats(events, hidden_reasoning):
            yield {RECORD: known, **({"task": row["instance_id"]} if row.get("instance_id") else {}), **chat}


class _History:
    """Messages of a history, built event by event; the calls of one response form one answer."""

    def __init__(self, hidden_reasoning: HiddenReasoning) -> None:
        self.hidden_reasoning: HiddenReasoning = hidden_reasoning
        self.messages: list[Message] = []
        self.tools: list[Message] = []
        self.reasons: list[str] = []
        self.left_out: Counter[str] = Counter()
        self.tokens: list[Message] = []
        self._answers: dict[object, Message] = {}
        self._calls: set[object] = set()
        self._replies: dict[object, int] = {}

    def add(self, event: Mapping[str, Any], where: str) -> None:
        """Add an event of the SDK, or of the version before it."""
        if event.get("kind") is not None:
            self.sdk_event(event, where)
        else:
            self.event(event, where)

    def is_part(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is a further call of an answer that already has a message."""
        if event.get("kind") is not None:
            return event["kind"] == "ActionEvent" and event.get("llm_response_id") in self._answers
        response = (event.get("tool_call_metadata") or {}).get("model_response") or {}
        return event.get("action") is not None and response.get("id") in self._answers

    def check_paired(self, where: str) -> None:
        """Refuse a history in which a call has no reply."""
        replied = {message.get("tool_call_id") for message in self.messages if message["role"] == "tool"}
        for answer in self.messages:
            for call in answer.get("tool_calls") or ():
                if call.get("id") not in replied:
                    refuse(
                        where,
                        f"the condensation keeps the call {call.get('id')!r} without its reply, so it removed more "
                        "events than the file lists",
                        "keep the events before the condensation",
                    )

    def add_response(self, identity: object, answer: Message, where: str) -> None:
        """Add an answer, by the id of its response."""
        self._answers[identity] = answer
        self._calls.update(call.get("id") for call in answer.get("tool_calls") or ())
        if answer.get("thinking_blocks"):
            self._think(answer, where)
        self.messages.append(answer)

    def _think(self, answer: Message, where: str) -> None:
        """Set the reasoning of an answer from its thinking blocks, or treat it as hidden."""
        blocks = answer.pop("thinking_blocks")
        texts = [block.get("thinking") or "" for block in blocks if isinstance(block, Mapping)]
        if all(texts):
            answer.setdefault("reasoning_content", "\n".join(texts))
        else:
            hidden(answer, self.reasons, where, self.hidden_reasoning, "its reasoning is encrypted")

    def reply(self, identity: object, content: str, name: object, where: str) -> None:
        """Add the reply of a tool."""
        if identity not in self._calls:
            refuse(where, f"it replies to the call {identity!r}, which no earlier event has", "give the whole file")
        self.messages.append(result_of(identity, content, name))

    def sdk_event(self, event: Mapping[str, Any], where: str) -> None:
        """Add an event of the SDK, which has a `kind`."""
        kind = event["kind"]
        if kind == "SystemPromptEvent":
            self.messages.append({"role": "system", "content": text_of(event.get("system_prompt"), where)})
            if event.get("dynamic_context"):
                self.messages[-1]["content"] += "\n" + text_of(event["dynamic_context"], where)
            self.tools = [
                _sdk_tool(tool, f"{where}, tools[{number}]") for number, tool in enumerate(event.get("tools") or ())
            ]
        elif kind == "MessageEvent":
            message = event.get("llm_message") or {}
            texts = [text_of(message.get("content"), where)]
            texts += [text_of(part, where) for part in event.get("extended_content") or ()]
            content = "\n".join(texts)
            if message.get("role") == "assistant":
                answer: Message = {"role": "assistant", "content": content}
                for name in ("reasoning_content", "thinking_blocks", "tool_calls"):
                    if message.get(name):
                        answer[name] = message[name]
                self.add_response(event.get("llm_response_id"), answer, where)
            else:
                self.messages.append({"role": message.get("role") or "user", "content": content})
        elif kind == "ActionEvent":
            self._action(event, where)
        elif kind in _REPLIES:
            observation = event.get("observation") or {}
            reply = event.get("error") or observation.get("content")
            if kind == "UserRejectObservation":
                reply = f"Action rejected: {event.get('rejection_reason') or ''}"
            if reply is None:
                reply = observation.get("output")
            texts = [text_of(reply, where)]
            texts += [text_of(part, where) for part in event.get("extended_content") or ()]
            self.reply(event.get("tool_call_id"), "\n".join(texts), event.get("tool_name"), where)
        elif kind == _TOKENS:
            self.tokens.append(
                {
                    "prompt_token_ids": event.get("prompt_token_ids"),
                    "completion_token_ids": event.get("response_token_ids"),
                }
            )
        elif kind in _NOT_READ_BY_THE_MODEL:
            self.left_out[f"event of kind {kind!r}"] += 1
        else:
            refuse(where, f"it is an event of kind {kind!r}, which may hold what the model read", "remove the event")

    def _action(self, event: Mapping[str, Any], where: str) -> None:
        call = event.get("tool_call")
        if not isinstance(call, Mapping) or not call:
            refuse(
                where,
                "the action has no tool_call, so what the model wrote is not in the file",
                "leave the session out",
            )
        function: Mapping[str, Any] = call["function"] if isinstance(call.get("function"), Mapping) else call
        identity = event.get("tool_call_id") or call.get("id")
        tool_call = call_of(identity, function.get("name") or event.get("tool_name"), function.get("arguments"), where)
        response = event.get("llm_response_id")
        known = self._answers.get(response) if response is not None else None
        if known is not None:
            known["tool_calls"].append(tool_call)
            self._calls.add(identity)
            return
        answer: Message = {
            "role": "assistant",
            "content": text_of(event.get("thought") or "", where),
            "tool_calls": [tool_call],
        }
        for name in ("reasoning_content", "thinking_blocks"):
            if event.get(name):
                answer[name] = event[name]
        sealed = (event.get("responses_reasoning_item") or {}).get("encrypted_content") or event.get(
            "reasoning_details"
        )
        self.add_response(response, answer, where)
        if sealed and not answer.get("reasoning_content"):
            hidden(answer, self.reasons, where, self.hidden_reasoning, "its reasoning is encrypted")

    def event(self, event: Mapping[str, Any], where: str) -> None:
        """Add an event of the version before the SDK: an action or an observation."""
        arguments = event.get("args") or {}
        meta = event.get("tool_call_metadata") or {}
        action, observation = event.get("action"), event.get("observation")
        if action == "system":
            self.messages.append({"role": "system", "content": text_of(arguments.get("content"), where)})
            self.tools = list(arguments.get("tools") or ())
        elif action == "message" and event.get("source") == "user":
            if arguments.get("image_urls"):
                refuse(where, "it has images, which a chat of texts cannot hold", "leave the session out")
            self.messages.append({"role": "user", "content": text_of(arguments.get("content"), where)})
        elif action is not None and meta.get("model_response"):
            response = meta["model_response"]
            if response.get("id") not in self._answers:
                self.add_response(response.get("id"), _answer_of(response, self.reasons, where), where)
        elif action == "message":
            self.add_response(None, {"role": "assistant", "content": text_of(arguments.get("content"), where)}, where)
        elif action is not None and event.get("source") == "agent" and action not in _STATES:
            refuse(
                where,
                f"the action {action!r} has no tool_call_metadata, so what the model wrote is not in the file",
                "log with function calling",
            )
        elif observation is not None and meta.get("tool_call_id"):
            content = text_of(event.get("content"), where)
            self.reply(meta["tool_call_id"], content, meta.get("function_name"), where)
        elif observation == "error":
            self.messages.append({"role": "user", "content": text_of(event.get("content"), where)})
        else:
            self.left_out[f"{'action' if action is not None else 'observation'} {action or observation!r}"] += 1


def _chats(events: Sequence[Event], hidden_reasoning: HiddenReasoning) -> Iterator[dict[str, Any]]:
    """Yield a chat for the events up to each condensation and one for the rest, if they have new answers."""
    view = Condensed(events)
    history, copied, start, is_condensed = _History(hidden_reasoning), 0, events[0][1], False
    for event, place in events:
        condensation = condensation_of(event, place)
        if condensation is None:
            count_before = len(history.messages)
            history.add(event, place)
            view.read(event, place, is_message=len(history.messages) > count_before or history.is_part(event))
            continue
        if _answers(history.messages[copied:]):
            yield _chat(history, copied, start)
        start, before, is_condensed = place, history, True
        history = _History("omit")
        for remaining_event, where in view.condense(condensation, place):
            history.add(remaining_event, where)
        for message in history.messages:
            if message["role"] == "assistant":
                message["weight"] = 0
        history.check_paired(place)
        copied = len(history.messages)
        history.hidden_reasoning, history.left_out, history.tools = hidden_reasoning, before.left_out, before.tools
        history.reasons, history.tokens = [], []
    if _answers(history.messages[copied:]) or not is_condensed:
        yield _chat(history, copied, start)


def _answers(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _chat(history: _History, copied: int, where: str) -> dict[str, Any]:
    """Return the chat of a history; its first `copied` messages are from the previous chat, or a summary."""
    absent = [_EXACT, *(f"{count} of: {kind}" for kind, count in sorted(history.left_out.items()))]
    chat: dict[str, Any] = {"messages": history.messages, "tools": history.tools, "left_out": absent}
    if history.tokens:
        answers = _answers(history.messages[copied:])
        if answers != len(history.tokens):
            refuse(where, f"it has {len(history.tokens)} events of tokens for {answers} answers", "remove these events")
        chat["turns"] = history.tokens
    return finished(chat, history.reasons, where)


def _answer_of(response: Mapping[str, Any], reasons: list[str], where: str) -> Message:
    choices: Sequence[Any] = response.get("choices") or []
    message = choices[0].get("message") if choices and isinstance(choices[0], Mapping) else None
    if not isinstance(message, Mapping):
        raise InvalidInputError(
            f"{where}: model_response.choices is {choices!r:.60}; give a list whose first entry has a message"
        )
    answer: Message = {"role": "assistant", "content": text_of(message.get("content"), where)}
    for name in ("reasoning_content", "thinking_blocks"):
        if message.get(name):
            answer[name] = message[name]
    calls = message.get("tool_calls") or ()
    if calls:
        answer["tool_calls"] = [
            call_of(call.get("id"), call["function"].get("name"), call["function"].get("arguments"), where)
            for call in calls
        ]
    if choices[0].get("finish_reason") == "length":
        mask(answer, reasons, f"{where}: it was cut by a limit, so that its end was not sampled")
    return answer


def _sdk_tool(tool: Any, where: str) -> Message:
    if not isinstance(tool, Mapping):
        raise InvalidInputError(f"{where} is {tool!r:.60}; give an object with the schema of the tool")
    if "function" in tool:
        return dict(tool)
    parameters = tool.get("parameters") or tool.get("input_schema") or (tool.get("mcp_tool") or {}).get("inputSchema")
    return tool_schema(tool.get("name") or tool.get("title"), tool.get("description"), parameters)
