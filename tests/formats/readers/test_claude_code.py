"""Sessions of Claude Code: lines linked by their parents."""

import itertools

import pytest
from read_files import assistant, call, check_trained, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import read


class Log:
    """Return the lines of a session, each the child of the previous one unless another parent is named."""

    def __init__(self):
        self.lines = []
        self._numbers = itertools.count()
        self._last = None

    def add(self, kind, message=None, *, parent="last", **more):
        identity = more.pop("uuid", f"u{next(self._numbers)}")
        line = {
            "parentUuid": self._last if parent == "last" else parent,
            "isSidechain": False,
            "sessionId": "s1",
            "cwd": "/repo",
            "version": "2.1.0",
            "type": kind,
            **({"message": message} if message is not None else {}),
            "uuid": identity,
            **more,
        }
        self.lines.append(line)
        self._last = identity
        return identity

    def user(self, content, **more):
        return self.add("user", {"role": "user", "content": content}, **more)

    def result(self, identity, content, **more):
        block = {"type": "tool_result", "tool_use_id": identity, "content": content, "is_error": False}
        return self.add("user", {"role": "user", "content": [block]}, toolUseResult={}, **more)

    def answer(self, identity, *blocks, stop=None, model="claude-sonnet-4-5", **more):
        message = {"id": identity, "role": "assistant", "model": model, "content": list(blocks), "stop_reason": stop}
        return self.add("assistant", message, requestId="r", **more)


def text(value):
    return {"type": "text", "text": value}


def use(identity, name="weather", **arguments):
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def think(value):
    return {"type": "thinking", "thinking": value, "signature": "abc"}


def test_a_session_with_a_call(tmp_path):
    log = Log()
    log.lines.append({"type": "summary", "summary": "Weather", "leafUuid": "u3"})
    log.lines.append({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}})
    log.user("how warm?")
    log.answer("m1", text("I look."))
    log.answer("m1", use("c1", city="Oslo"))
    log.result("c1", [{"type": "text", "text": "4 degrees"}])
    log.add("system", subtype="turn_duration", durationMs=5)
    log.answer("m2", text("Cold."), stop="end_turn")
    path = write_lines(tmp_path / "s1.jsonl", log.lines, "\r\n")
    answers = [assistant("I look.", call(city="Oslo")), assistant("Cold.")]
    [chat] = check_trained(path, answers)
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert chat["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}
    assert chat["task"] == chat["session_id"] == "s1"
    assert chat["left_out"] == [
        "the system prompt and the tools, which the log does not hold",
        "1 of: entry of type 'file-history-snapshot'",
        "1 of: entry of type 'summary'",
        "1 of: entry of type 'system'",
    ]
    assert "untrained" not in chat


@pytest.mark.parametrize("interleaved", [False, True])
def test_parallel_calls_are_one_answer_and_fork_nothing(interleaved, tmp_path):
    """Each result is a child of the line with its own call."""
    log = Log()
    log.user("how warm?")
    first = log.answer("m1", use("c1", city="Oslo"))
    if interleaved:
        log.result("c1", "4 degrees", parent=first)
        second = log.answer("m1", use("c2", "time"))
        log.result("c2", "noon", parent=second)
    else:
        second = log.answer("m1", use("c2", "time"))
        log.result("c1", "4 degrees", parent=first)
        log.result("c2", "noon", parent=second)
    log.answer("m2", text("Cold."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    answers = [assistant("", call(city="Oslo"), call("time", "c2")), assistant("Cold.")]
    [chat] = check_trained(path, answers, templates=("qwen3", "glm4moe"))
    assert [message.get("content") for message in chat["messages"][2:4]] == ["4 degrees", "noon"]


def test_thinking_is_trained_where_the_log_holds_it(tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", think("It is winter."))
    log.answer("m1", text("Cold."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    check_trained(path, [assistant("Cold.", reasoning_content="It is winter.")], templates=("qwen3",))


@pytest.mark.parametrize("block", [think(""), {"type": "redacted_thinking", "data": "abc"}])
def test_hidden_thinking_is_refused_masked_or_left_out(block, tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", block)
    log.answer("m1", text("Cold."))
    log.user("And now?")
    log.answer("m2", text("Warm."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    with pytest.raises(UnsupportedError, match=r"s1.jsonl, line 2: its reasoning is encrypted .*='mask'"):
        list(read(path))
    [chat] = check_trained(path, [assistant("Warm.")], [assistant("Cold.")], hidden_reasoning="mask")
    assert chat["untrained"] == ["s1.jsonl, line 2: its reasoning is encrypted or left out"]
    check_trained(path, [assistant("Cold."), assistant("Warm.")], hidden_reasoning="omit")


def test_an_edited_message_starts_a_new_chat_and_no_answer_is_trained_twice(tmp_path):
    log = Log()
    log.user("how warm?")
    fork = log.answer("m1", text("Cold."))
    log.user("And now?")
    log.answer("m2", text("Warm."))
    log.user("And tomorrow?", parent=fork)
    log.answer("m3", text("Hot."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    first, second = check_trained(
        path, [assistant("Cold."), assistant("Warm."), assistant("Hot.")], [assistant("Cold.")]
    )
    assert [message["content"] for message in second["messages"]] == ["how warm?", "Cold.", "And tomorrow?", "Hot."]
    assert first["task"] == second["task"]


def test_a_compaction_and_a_sub_agent_are_separate_chats(tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", use("c1", "Task", prompt="look"))
    log.result("c1", "cold")
    log.answer("m2", text("Cold."))
    log.user("look", parent=None, isSidechain=True, agentId="a")
    log.answer("n1", text("It is cold."), isSidechain=True, agentId="a")
    log.add("system", parent=None, subtype="compact_boundary", logicalParentUuid="u3")
    log.user("This session is being continued: cold.", isCompactSummary=True)
    log.user("And now?")
    log.answer("m3", text("Warm."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    answers = [
        assistant("", call("Task", prompt="look")),
        assistant("Cold."),
        assistant("It is cold."),
        assistant("Warm."),
    ]
    main, agent, after = check_trained(path, answers, templates=("qwen3",))
    assert (main.get("sidechain"), agent.get("sidechain")) == (None, True)
    assert after["messages"][0]["content"].startswith("This session is being continued")


def test_interrupted_truncated_and_synthetic_answers_are_not_trained(tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", text("Co"))
    log.user([text("[Request interrupted by user]")])
    log.user("Go on.")
    log.answer("m2", text("Cold and"), stop="max_tokens")
    log.user("Go on.")
    log.answer("m3", text("No response requested."), model="<synthetic>")
    log.user("Go on.")
    log.answer("m4", text("API Error: 529"), model="<synthetic>", isApiErrorMessage=True)
    log.answer("m5", text("Cold."))
    path = write_lines(tmp_path / "s1.jsonl", log.lines)
    [chat] = check_trained(
        path,
        [assistant("Cold.")],
        [assistant("Co"), assistant("Cold and"), assistant("No response requested.")],
        templates=("qwen3",),
    )
    assert [reason.partition(": ")[2] for reason in chat["untrained"]] == [
        "the user interrupted the answer before it",
        "it was cut by a limit, so that its end was not sampled",
        "the program wrote it, not the model",
    ]
    assert "1 of: error of the server" in chat["left_out"]
    assert not any("API Error" in message["content"] for message in chat["messages"])


def test_lines_that_a_resumed_session_copies_count_once(tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", text("Cold."))
    log.lines += [dict(line) for line in log.lines]
    check_trained(write_lines(tmp_path / "s1.jsonl", log.lines), [assistant("Cold.")])


def test_a_last_call_without_a_result(tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", text(""), use("c1"))
    check_trained(write_lines(tmp_path / "s1.jsonl", log.lines), [assistant("", call())])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda log: log.result("c9", "4"), UnsupportedError, "line 3: it replies to the call 'c9'"),
        (
            lambda log: log.result(None, "4"),
            InvalidInputError,
            r"line 3: content\[0\] is a tool_result without tool_use_id",
        ),
        (lambda log: log.user([{"type": "image", "source": {}}]), UnsupportedError, "line 3: .* part of type 'image'"),
        (lambda log: log.user(None), InvalidInputError, "line 3: content is None"),
        (lambda log: log.user("hi", parent="gone"), InvalidInputError, "line 3: parentUuid is 'gone', but no earlier"),
        (
            lambda log: log.answer("m9", use(None, None)),
            InvalidInputError,
            "line 3: a tool call has the name None",
        ),
        (
            lambda log: log.answer("m9", {"type": "server_tool_use", "id": "c", "name": "web_search"}),
            UnsupportedError,
            "part of type 'server_tool_use'",
        ),
        (lambda log: log.answer("m9", use("c1"), text("So.")), UnsupportedError, "it has text after a call"),
    ],
)
def test_invalid_and_unsupported_entries_are_rejected_with_their_line(change, error, message, tmp_path):
    log = Log()
    log.user("how warm?")
    log.answer("m1", text("Cold."))
    change(log)
    with pytest.raises(error, match=message):
        list(read(write_lines(tmp_path / "s1.jsonl", log.lines)))
