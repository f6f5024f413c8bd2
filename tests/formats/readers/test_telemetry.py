"""Spans of OpenTelemetry's conventions for generative AI, current and earlier, in the formats of exporters."""

import json

import pytest
from read_files import assistant, call, check_trained, write_json, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import read

TOOL = {"type": "function", "name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}


def message_of(role, *parts, **more):
    return {"role": role, "parts": list(parts), **more}


def text(content):
    return {"type": "text", "content": content}


USER = message_of("user", text("how warm?"))
CALLED = message_of("assistant", {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}})
REPLY = message_of("tool", {"type": "tool_call_response", "id": "c1", "response": "4 degrees"})
COLD = message_of("assistant", text("Cold."))
ANSWERS = [assistant("", call(city="Oslo")), assistant("Cold.")]


def attributes(context, output, finish="stop", **more):
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.system_instructions": json.dumps([text("Be brief.")]),
        "gen_ai.input.messages": json.dumps(context),
        "gen_ai.output.messages": json.dumps([{**output, "finish_reason": finish}]),
        "gen_ai.tool.definitions": json.dumps([TOOL]),
        **more,
    }


def console(number, values, name="chat m", trace="0xabc", **more):
    """Return a span in the format of the SDK's console exporter."""
    return {
        "name": name,
        "context": {"trace_id": trace, "span_id": f"0x{number}", "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": None,
        "start_time": f"2026-01-01T00:00:0{number}.000000Z",
        "end_time": f"2026-01-01T00:00:0{number}.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": values,
        "events": [],
        "links": [],
        **more,
    }


def otlp(*spans):
    """Return the request of the OTLP exporter, as JSON."""

    def value(item):
        return {"intValue": str(item)} if isinstance(item, int) else {"stringValue": item}

    otlp_spans = [
        {
            "traceId": "abc",
            "spanId": str(number),
            "name": "chat m",
            "startTimeUnixNano": str(10**18 + number),
            "attributes": [{"key": key, "value": value(each)} for key, each in values.items()],
            "status": {},
        }
        for number, values in enumerate(spans)
    ]
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": otlp_spans}]}]}


FIRST, SECOND = attributes([USER], CALLED, "tool_call"), attributes([USER, CALLED, REPLY], COLD)


def test_calls_that_extend_one_history_are_one_chat(tmp_path):
    agent = console(0, {"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": "[]"}, "invoke_agent")
    tool = console(2, {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather"}, "execute_tool")
    rows = [tool, console(3, SECOND), console(1, FIRST), agent]  # spans are written when they end
    [chat] = check_trained(write_lines(tmp_path / "spans.jsonl", rows, "\r\n"), ANSWERS)
    assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
    assert chat["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}
    assert chat["tools"][0]["function"]["name"] == "weather"
    assert chat["task"] == chat["trace_id"] == "0xabc"


def test_requests_of_otlp(tmp_path):
    for path in (
        write_json(tmp_path / "one.json", otlp(FIRST, SECOND)),
        write_lines(tmp_path / "two.jsonl", [otlp(FIRST), otlp(SECOND)]),
    ):
        check_trained(path, ANSWERS)


def test_details_may_be_in_an_event_of_the_span(tmp_path):
    outer = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    rows = [
        console(
            number,
            outer,
            events=[{"name": "gen_ai.client.inference.operation.details", "attributes": values, "timestamp": "t"}],
        )
        for number, values in enumerate((FIRST, SECOND))
    ]
    check_trained(write_lines(tmp_path / "spans.jsonl", rows), ANSWERS)


def test_numbered_attributes(tmp_path):
    """Attributes of OpenLLMetry."""
    question = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "how warm?"}
    called = {
        "role": "assistant",
        "tool_calls.0.id": "c1",
        "tool_calls.0.name": "weather",
        "tool_calls.0.arguments": '{"city": "Oslo"}',
    }
    tools = {"llm.request.functions.0.name": "weather", "llm.request.functions.0.parameters": '{"type": "object"}'}
    first = question | tools | {f"gen_ai.completion.0.{key}": value for key, value in called.items()}
    first["gen_ai.completion.0.finish_reason"] = "tool_calls"
    second = question | tools | {f"gen_ai.prompt.1.{key}": value for key, value in called.items()}
    second |= {
        "gen_ai.prompt.2.role": "tool",
        "gen_ai.prompt.2.tool_call_id": "c1",
        "gen_ai.prompt.2.content": '[{"type": "text", "text": "4 degrees"}]',
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "Cold.",
        "gen_ai.completion.0.finish_reason": "stop",
    }
    rows = [console(1, first), console(2, second)]
    [chat] = check_trained(write_lines(tmp_path / "spans.jsonl", rows), ANSWERS)
    assert chat["messages"][2]["content"] == "4 degrees"


def test_messages_as_events(tmp_path):
    """The conventions up to 1.36."""
    event = {"name": "gen_ai.user.message", "attributes": {"content": "how warm?"}}
    choice = {"name": "gen_ai.choice", "attributes": {"message": '{"content": "Cold."}', "finish_reason": "stop"}}
    row = console(1, {"gen_ai.operation.name": "chat"}, events=[event, choice])
    check_trained(write_lines(tmp_path / "spans.jsonl", [row]), [assistant("Cold.")])


def test_agents_in_one_trace_are_separate_chats(tmp_path):
    """Nothing is trained twice, however the calls are mixed."""
    other = message_of("user", text("what time?"))
    noon = message_of("assistant", text("Noon."))
    rows = [console(1, FIRST), console(2, attributes([other], noon)), console(3, SECOND)]
    first, second = check_trained(write_lines(tmp_path / "spans.jsonl", rows), [*ANSWERS, assistant("Noon.")])
    assert first["task"] == second["task"]


def test_a_history_that_was_cut_trains_its_new_answer_alone(tmp_path):
    truncated = attributes(
        [message_of("user", text("Summary.")), COLD, message_of("user", text("And now?"))],
        message_of("assistant", text("Warm.")),
    )
    rows = [console(1, FIRST), console(2, SECOND), console(3, truncated)]
    _, second = check_trained(
        write_lines(tmp_path / "spans.jsonl", rows), [*ANSWERS, assistant("Warm.")], [assistant("Cold.")]
    )
    assert "1 answers in its context are not of a call before it" in second["untrained"][0]


def test_a_history_without_the_reasoning_continues_its_chat(tmp_path):
    thought = message_of("assistant", {"type": "reasoning", "content": "Winter."}, text("Cold."))
    rows = [
        console(1, attributes([USER], thought)),
        console(2, attributes([USER, COLD, USER], message_of("assistant", text("Warm.")))),
    ]
    answers = [assistant("Cold.", reasoning_content="Winter."), assistant("Warm.")]
    [chat] = check_trained(write_lines(tmp_path / "spans.jsonl", rows), answers, templates=("qwen3",))
    assert len(chat["messages"]) == 5


def test_an_answer_that_a_limit_cut_is_context(tmp_path):
    rows = [console(1, attributes([USER], message_of("assistant", text("Co")), "length"))]
    rows.append(console(2, attributes([USER, message_of("assistant", text("Co")), USER], COLD)))
    check_trained(write_lines(tmp_path / "spans.jsonl", rows), [assistant("Cold.")], [assistant("Co")])


def test_two_choices_are_two_chats(tmp_path):
    values = attributes([USER], COLD)
    values["gen_ai.output.messages"] = json.dumps([COLD, message_of("assistant", text("Warm."))])
    check_trained(write_lines(tmp_path / "spans.jsonl", [console(1, values)]), [assistant("Cold."), assistant("Warm.")])


def test_calls_that_failed_are_not_answers(tmp_path):
    failed = console(2, {"gen_ai.operation.name": "chat"}, status={"status_code": "ERROR"})
    check_trained(write_lines(tmp_path / "spans.jsonl", [console(1, FIRST), failed, console(3, SECOND)]), ANSWERS)


def test_spans_that_the_sdk_exports(tmp_path):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    with (tmp_path / "spans.json").open("w") as file:
        exporter = export.ConsoleSpanExporter(out=file)
        provider = sdk.TracerProvider()
        provider.add_span_processor(export.SimpleSpanProcessor(exporter))
        with provider.get_tracer("t").start_as_current_span("invoke_agent"):
            for values in (FIRST, SECOND):
                with provider.get_tracer("t").start_as_current_span("chat m", attributes=values):
                    pass
    check_trained(tmp_path / "spans.json", ANSWERS)


def part(kind):
    return attributes([message_of("user", {"type": kind, "uri": "a.png"})], COLD)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"gen_ai.operation.name": "chat"}, UnsupportedError, "without its messages, whose contents were not recorded"),
        (attributes([], COLD) | {"gen_ai.system_instructions": "[]"}, UnsupportedError, "were not recorded"),
        (part("uri"), UnsupportedError, r"record 0, gen_ai\.input\.messages\[0\]: it holds a part of type 'uri'"),
        ({"gen_ai.input.messages": '[{"role": "us'}, InvalidInputError, "; give a whole JSON list"),
        (
            attributes([message_of("tool", {"type": "tool_call_response", "id": "c", "response": {"a": 1}})], COLD),
            UnsupportedError,
            "the reply of a tool is {'a': 1}",
        ),
        (attributes([{"parts": []}], COLD), InvalidInputError, "give an object with role and parts"),
    ],
)
def test_invalid_and_unsupported_spans_are_rejected(values, error, message):
    with pytest.raises(error, match=message):
        list(read([console(1, values)]))


def test_a_record_that_is_not_a_span_is_rejected():
    with pytest.raises(InvalidInputError, match=r"record 1 is not a span \(it has 'a'"):
        list(read([console(1, FIRST), {"a": 1}]))


def test_thoughts_and_names_as_other_instrumentations_write_them():
    thought = message_of("assistant", {"type": "thinking", "content": "It is winter."}, text("Cold."))
    reply = message_of("tool", {"type": "tool_call_response", "id": "c1", "name": "weather", "result": "4 degrees"})
    question = message_of("user", text("how warm?"), name="Ada")
    [chat] = read([console(1, attributes([question, CALLED, reply], thought))])
    assert chat["messages"][1]["name"] == "Ada"
    assert chat["messages"][3]["name"] == "weather"
    assert chat["messages"][4] == {"role": "assistant", "content": "Cold.", "reasoning_content": "It is winter."}
    hosted = message_of("assistant", {"type": "server_tool_call", "id": "s1", "name": "code_interpreter"})
    with pytest.raises(UnsupportedError, match="a part of type 'server_tool_call'"):
        list(read([console(1, attributes([USER], hosted))]))
