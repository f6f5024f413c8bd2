"""Rollouts of Codex: items of the Responses API, with and without envelopes."""

import pytest
from read_files import assistant, call, check_trained, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import read

META = {
    "type": "session_meta",
    "payload": {"id": "s1", "cwd": "/repo", "cli_version": "0.80.0", "base_instructions": {"text": "You are Codex."}},
}


def item(kind, **fields):
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **fields}}


def user(text):
    return item("message", role="user", content=[{"type": "input_text", "text": text}])


def answer(text):
    return item("message", role="assistant", content=[{"type": "output_text", "text": text}])


def use(identity="c1", name="exec_command", arguments='{"cmd": "ls"}'):
    return item("function_call", name=name, arguments=arguments, call_id=identity)


def result(identity="c1", output="a.py"):
    return item("function_call_output", call_id=identity, output=output)


EVENT = {"type": "event_msg", "payload": {"type": "agent_message", "message": "I look."}}
TURN = {"type": "turn_context", "payload": {"model": "gpt-5-codex", "cwd": "/repo"}}
REASONING = item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "Files first."}])
SEALED = item("reasoning", summary=[{"type": "summary_text", "text": "**Look**"}], encrypted_content="abc")
SHELL = call("exec_command", cmd="ls")


def test_a_session(tmp_path):
    rows = [
        META,
        item("message", role="developer", content=[{"type": "input_text", "text": "Sandbox: on."}]),
        user("what is here?"),
        TURN,
        REASONING,
        answer("I look."),
        EVENT,
        use(),
        item("ghost_snapshot", ghost_commit={}),
        result(),
        answer("One file."),
    ]
    path = write_lines(tmp_path / "rollout-1.jsonl", rows, "\r\n")
    answers = [assistant("I look.", SHELL, reasoning_content="Files first."), assistant("One file.")]
    [chat] = check_trained(path, answers, templates=("qwen3",))
    assert chat["messages"][:2] == [
        {"role": "system", "content": "You are Codex."},
        {"role": "developer", "content": "Sandbox: on."},
    ]
    assert chat["task"] == "s1"
    assert chat["left_out"] == ["the tools, which the log does not hold"]


def test_parallel_calls_and_outputs_of_several_shapes(tmp_path):
    rows = [
        META,
        user("what is here?"),
        use(),
        use("c2", "time", "{}"),
        result("c1", {"content": "a.py", "success": True}),
        result("c2", [{"type": "input_text", "text": "noon"}]),
        answer("One file."),
    ]
    answers = [assistant("", SHELL, call("time", "c2")), assistant("One file.")]
    [chat] = check_trained(write_lines(tmp_path / "r.jsonl", rows), answers, templates=("qwen3", "glm4moe"))
    assert [each["content"] for each in chat["messages"] if each["role"] == "tool"] == ["a.py", "noon"]


def test_custom_and_local_shell_calls(tmp_path):
    rows = [
        META,
        user("mend it"),
        item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c1", status="completed"),
        item("custom_tool_call_output", call_id="c1", output="Done"),
        item("local_shell_call", call_id="c2", status="completed", action={"type": "exec", "command": ["ls"]}),
        result("c2"),
    ]
    [chat] = read(write_lines(tmp_path / "r.jsonl", rows))
    first, second = (each["tool_calls"][0]["function"] for each in chat["messages"] if each["role"] == "assistant")
    assert first == {"name": "apply_patch", "arguments": "*** Begin Patch"}
    assert second == {"name": "local_shell", "arguments": {"type": "exec", "command": ["ls"]}}


def test_lines_without_envelopes(tmp_path):
    """Format of versions before September 2025."""
    rows = [
        {"id": "s0", "timestamp": "2025-08-01T00:00:00Z", "instructions": "You are Codex.", "git": {}},
        {"record_type": "state"},
        *(row["payload"] for row in (user("what is here?"), use(), result(), answer("One file."))),
        {"record_type": "state"},
    ]
    [chat] = check_trained(write_lines(tmp_path / "r.jsonl", rows), [assistant("", SHELL), assistant("One file.")])
    assert chat["task"] == "s0"


def test_encrypted_reasoning_is_refused_masked_or_left_out(tmp_path):
    rows = [META, user("what is here?"), SEALED, use(), result(), answer("One file.")]
    path = write_lines(tmp_path / "r.jsonl", rows)
    with pytest.raises(UnsupportedError, match=r"r.jsonl, line 3: its reasoning is encrypted"):
        list(read(path))
    [chat] = check_trained(path, [assistant("One file.")], [assistant("", SHELL)], hidden_reasoning="mask")
    assert chat["untrained"] == ["r.jsonl, line 3: its reasoning is encrypted, and the log has a summary at most"]
    check_trained(path, [assistant("", SHELL), assistant("One file.")], hidden_reasoning="omit")


def test_a_compacted_history_begins_another_chat(tmp_path):
    history = [user("what is here?")["payload"], answer("One file.")["payload"], user("Summary: a.py.")["payload"]]
    rows = [
        META,
        user("what is here?"),
        answer("One file."),
        {"type": "compacted", "payload": {"message": "Summary", "replacement_history": history}},
        user("And now?"),
        answer("Two."),
    ]
    path = write_lines(tmp_path / "r.jsonl", rows)
    first, second = check_trained(path, [assistant("One file."), assistant("Two.")], [assistant("One file.")])
    assert [message["content"] for message in second["messages"]] == [
        "what is here?",
        "One file.",
        "Summary: a.py.",
        "And now?",
        "Two.",
    ]
    assert first["task"] == second["task"]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([result("c9")], UnsupportedError, "line 2: it replies to the call 'c9', which no earlier"),
        ([{"type": "inter_agent_communication", "payload": {}}], UnsupportedError, "'inter_agent_communication'"),
        ([use(None)], InvalidInputError, "line 2: the call of .* has no call_id"),
        ([use("c1", None)], InvalidInputError, "line 2: the tool call 'c1' has the name None"),
        ([item("web_search_call", action={})], UnsupportedError, "line 2: it is an item of type 'web_search_call'"),
        (
            [item("message", role="user", content=[{"type": "input_image", "image_url": "data:"}])],
            UnsupportedError,
            "line 2: it holds a part of type 'input_image'",
        ),
        ([{"type": "compacted", "payload": {"message": "S"}}], UnsupportedError, "does not hold the new one"),
        ([{"type": "event_msg", "payload": {"type": "thread_rolled_back"}}], UnsupportedError, "was rolled back"),
        (
            [{"type": "response_item", "payload": None}],
            InvalidInputError,
            "line 2: payload of the response_item is None; give an object",
        ),
    ],
)
def test_unsupported_or_invalid_records_are_refused_with_their_line(rows, error, message, tmp_path):
    with pytest.raises(error, match=message):
        list(read(write_lines(tmp_path / "r.jsonl", [META, *rows])))


def test_states_and_messages_between_agents_are_not_answers(tmp_path):
    agent_message = '{"author": "agents/a", "recipient": "agents", "content": "Done.", "trigger_turn": false}'
    rows = [
        META,
        {"type": "world_state", "payload": {"snapshot": {}}},
        user("what is here?"),
        answer("I ask."),
        answer(agent_message),
        {"type": "inter_agent_communication_metadata", "payload": {"trigger_turn": False}},
        answer('{"author": "me"}'),
    ]
    path = write_lines(tmp_path / "r.jsonl", rows)
    [chat] = check_trained(path, [assistant("I ask."), assistant('{"author": "me"}')], [assistant(agent_message)])
    assert chat["untrained"] == ["r.jsonl, line 5: another agent wrote it"]


def test_an_interrupted_turn_ends_with_its_call(tmp_path):
    rows = [
        META,
        user("what is here?"),
        use(),
        result(output="aborted by user after 1.2s"),
        {"type": "event_msg", "payload": {"type": "turn_aborted", "reason": "interrupted"}},
        user("<turn_aborted>"),
        user("Go on."),
        use("c2"),
        use("c3", "read", '{"path": "a"}'),
        result("c3", {"content": "no such file", "success": False}),
        result("c2", [{"type": "input_text", "text": "a.py"}, {"type": "input_text", "text": "b.py"}]),
        answer("Two files."),
    ]
    second = assistant("", call("exec_command", "c2", cmd="ls"), call("read", "c3", path="a"))
    [chat] = check_trained(
        write_lines(tmp_path / "r.jsonl", rows), [assistant("", SHELL), second, assistant("Two files.")]
    )
    assert [message["content"] for message in chat["messages"] if message["role"] == "tool"] == [
        "aborted by user after 1.2s",
        "no such file",
        "a.py\nb.py",
    ]


@pytest.mark.parametrize("named", [True, False])
def test_a_fork_repeats_answers_of_another_session(named, tmp_path):
    """The lines of the other session are copied with its `session_meta`; earlier versions name it nowhere else."""
    payload = {**META["payload"], "id": "s2", **({"forked_from_id": "s1"} if named else {})}
    rows = [
        {"type": "session_meta", "payload": payload},
        META,
        user("what is here?"),
        answer("One file."),
        answer("Two."),
    ]
    line = 1 if named else 2
    with pytest.raises(UnsupportedError, match=f"line {line}: the session begins with a copy of the lines of 's1'"):
        list(read(write_lines(tmp_path / "r.jsonl", rows)))


def test_a_resumed_session_may_repeat_its_header(tmp_path):
    rows = [META, user("what is here?"), answer("One file."), META, user("And now?"), answer("Two.")]
    [chat] = check_trained(write_lines(tmp_path / "r.jsonl", rows), [assistant("One file."), assistant("Two.")])
    assert chat["task"] == "s1"
