"""Records with missing keys, nulls and values of other types: read, or rejected with an error of the package."""

import copy

import pytest

from agentrl_core.exceptions import AgentRLError
from agentrl_core.integrations.trajectories import from_chats, read

TURN = {"role": "user", "content": [{"type": "text", "text": "how warm?"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ANSWER = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
REPLY = {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}


def message_record(kind, content, parent, identity, **more):
    message = {"id": identity, "role": kind, "content": content, **more}
    return {"type": kind, "uuid": identity, "parentUuid": parent, "sessionId": "s", "message": message}


def item(kind, **fields):
    return {"type": "response_item", "payload": {"type": kind, **fields}}


RESPONSE = {"id": "r1", "choices": [{"message": ANSWER, "finish_reason": "stop"}]}
META = {"tool_call_id": "c1", "function_name": "weather", "model_response": RESPONSE}
PARTS = [{"type": "text", "content": "how warm?"}]
OUTPUT = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {}}]}
SAMPLES = {
    "agent_lightning": [
        {
            "event_type": "model_request",
            "rollout_id": "r",
            "attempt_id": "a",
            "data": {
                "request": {"messages": [TURN], "tools": [TOOL]},
                "response": {"choices": [{"message": ANSWER, "finish_reason": "stop"}]},
                "http_status": 200,
            },
        },
        {"event_type": "reward", "rollout_id": "r", "attempt_id": "a", "data": {"value": 1.0}},
    ],
    "chats": [{"messages": [TURN, ANSWER, REPLY], "tools": [TOOL]}],
    "claude_code": [
        message_record("user", "how warm?", None, "u1"),
        message_record(
            "assistant",
            [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}],
            "u1",
            "a1",
            stop_reason=None,
        ),
        message_record("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "4"}], "a1", "u2"),
    ],
    "codex": [
        {"type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "You are Codex."}}},
        item("message", role="user", content=[{"type": "input_text", "text": "hi"}]),
        item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "t"}]),
        item("function_call", name="shell", arguments="{}", call_id="c1"),
        item("function_call_output", call_id="c1", output={"content": "a"}),
        {
            "type": "compacted",
            "payload": {"replacement_history": [{"type": "message", "role": "user", "content": "a"}]},
        },
        {"type": "event_msg", "payload": {"type": "agent_message"}},
    ],
    "inspect": [
        {
            "version": 2,
            "eval": {"task": "t"},
            "samples": [
                {
                    "id": 1,
                    "epoch": 1,
                    "messages": [
                        {"role": "user", "content": "attachment://a"},
                        {
                            "id": "m",
                            "role": "assistant",
                            "content": [{"type": "reasoning", "reasoning": "t"}, {"type": "text", "text": "a"}],
                            "tool_calls": [{"id": "c1", "function": "weather", "arguments": {}}],
                        },
                        {"role": "tool", "content": "", "tool_call_id": "c1", "error": {"message": "no"}},
                    ],
                    "scores": {"s": {"value": "C"}},
                    "events": [
                        {
                            "event": "model",
                            "tools": [{"name": "weather", "parameters": {}}],
                            "output": {"choices": [{"message": {"id": "m"}, "stop_reason": "stop"}]},
                        }
                    ],
                    "attachments": {"a": "how warm?"},
                }
            ],
        }
    ],
    "openhands": [
        {"source": "agent", "action": "system", "args": {"content": "You are.", "tools": [TOOL]}},
        {"source": "user", "action": "message", "args": {"content": "how warm?", "image_urls": []}},
        {"source": "agent", "action": "run", "args": {}, "tool_call_metadata": META},
        {"source": "agent", "observation": "run", "content": "4", "tool_call_metadata": META},
        {"kind": "SystemPromptEvent", "system_prompt": {"type": "text", "text": "a"}, "tools": [{"name": "run"}]},
        {"kind": "MessageEvent", "llm_message": TURN, "extended_content": PARTS and [{"type": "text", "text": "b"}]},
        {
            "kind": "ActionEvent",
            "thought": [{"type": "text", "text": "a"}],
            "tool_call": {"id": "c2", "name": "run", "arguments": "{}"},
            "tool_call_id": "c2",
            "llm_response_id": "r2",
            "thinking_blocks": [{"type": "thinking", "thinking": "t"}],
        },
        {"kind": "ObservationEvent", "tool_call_id": "c2", "observation": {"content": [{"type": "text", "text": "a"}]}},
    ],
    "opentelemetry": [
        {
            "context": {"trace_id": "t"},
            "name": "chat",
            "start_time": "2026",
            "status": {"status_code": "UNSET"},
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.system_instructions": PARTS,
                "gen_ai.input.messages": [{"role": "user", "parts": PARTS}],
                "gen_ai.output.messages": [{**OUTPUT, "finish_reason": "stop"}],
                "gen_ai.tool.definitions": [{"name": "weather", "parameters": {}}],
            },
            "events": [{"name": "e", "attributes": {"a": 1}}],
        },
        {
            "resourceSpans": [
                {
                    "scopeSpans": [
                        {
                            "spans": [
                                {
                                    "traceId": "t",
                                    "startTimeUnixNano": "5",
                                    "attributes": [
                                        {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
                                        {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "hi"}},
                                        {"key": "gen_ai.completion.0.content", "value": {"stringValue": "yo"}},
                                    ],
                                }
                            ]
                        }
                    ]
                }
            ]
        },
    ],
    "prompt_completion": [{"prompt": [TURN], "completion": [ANSWER]}, {"prompt": "a", "completion": "b"}],
    "sharegpt": [
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {}}'},
                {"from": "gpt", "value": "b", "weight": 1},
            ],
            "system": "s",
            "tools": "[]",
        }
    ],
    "slime": [
        {
            "rollout_id": 1,
            "samples": [
                {
                    "tokens": [1, 2, 3],
                    "response_length": 2,
                    "loss_mask": [1, 1],
                    "rollout_log_probs": [-1.0, -2.0],
                    "reward": 1.0,
                    "group_index": 0,
                    "prompt": "a",
                }
            ],
        }
    ],
    "swe_agent": [
        {
            "environment": "e",
            "history": [
                {**TURN, "agent": "main", "message_type": "observation"},
                {**ANSWER, "agent": "main", "thinking_blocks": [{"type": "thinking", "thinking": "t"}]},
                {"role": "tool", "content": "a", "agent": "main", "tool_call_ids": ["c1"]},
            ],
            "trajectory": [{"query": [TURN], "response": "I look."}],
            "info": {},
        }
    ],
    "tokens": [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1], "logprobs": [-1.0, -2.0]},
        {"prompt_ids": [1], "completion_ids": [2, 3], "completion_mask": [1, 0], "logprobs": [-1.0, -2.0]},
        {"turns": [{"prompt_token_ids": [1], "completion_token_ids": [2], "reward": 1.0, "weight": 1}]},
    ],
    "verl": [{"input": "a", "output": "b", "score": 1.0, "step": 1, "gts": None}],
}
ODD = (None, 7, -1.5, True, "x", "", [], {}, [7], [None], {"x": 1}, [[]], [{}])


def paths_of(value, path=()):
    """Yield the paths of all values inside a value, without its own."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from paths_of(each, (*path, key))


def changed(value, path, replacement):
    copied = copy.deepcopy(value)
    at = copied
    for key in path[:-1]:
        at = at[key]
    if replacement is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = copy.deepcopy(replacement)
    return copied


def test_every_format_has_a_sample():
    with pytest.raises(AgentRLError, match="give one of " + ", ".join(SAMPLES)):
        list(read([], "none"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_is_read_or_refused(name):
    rows = SAMPLES[name]
    assert list(read(rows, name, hidden_reasoning="mask"))
    tried = read_ones = 0
    messages = []
    for path in paths_of(rows):
        for replacement in (KeyError, *ODD):
            odd = changed(rows, path, replacement)
            tried += 1
            try:
                chats = list(read(odd, name, hidden_reasoning="mask"))
                if name in ("tokens", "slime"):
                    from_chats(chats)
                read_ones += 1
            except AgentRLError as error:
                messages.append(str(error))
            except Exception as error:
                raise AssertionError((path, replacement)) from error
    assert 0 < read_ones < tried
    assert [message for message in messages if ";" not in message] == []
