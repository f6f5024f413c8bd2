"""Trajectories of SWE-agent, with and without the messages that were sent at each step."""

import pytest
from read_files import assistant, call, check_trained, write_json

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import read

LS, CAT = call("bash", "c1", command="ls"), call("open", "c2", path="a.py")


def entry(role, content, kind, **more):
    return {"role": role, "content": content, "agent": "main", "message_type": kind, **more}


def action(content, *calls, **more):
    tool_calls = [{"function": each["function"], "id": each["id"], "type": "function", "index": 1} for each in calls]
    fields = {"thought": content, "action": "ls", "tool_calls": tool_calls or None, "thinking_blocks": None}
    return entry("assistant", content, "action", **{**fields, **more})


def observed(identity, content):
    return entry("tool", content, "observation", tool_call_ids=[identity])


def step(content, query=None):
    fields = {"action": "ls", "observation": "a.py", "response": content, "thought": content, "state": {}}
    return {**fields, "execution_time": 0.1, "query": [{}] if query is None else query, "extra_info": {}}


SYSTEM, ISSUE = entry("system", "SETTING", "system_prompt"), entry("user", "ISSUE", "observation")
DEMO = entry("user", "A demonstration.", "demonstration", is_demo=True)
SHOWN = action("Shown.", is_demo=True)
HISTORY = [
    SYSTEM,
    DEMO,
    ISSUE,
    action("I look.", LS),
    observed("c1", "a.py"),
    action("I read.", CAT),
    observed("c2", "x"),
]
ANSWERS = [assistant("I look.", LS), assistant("I read.", CAT)]


def file_of(tmp_path, history, steps):
    info = {"exit_status": "submitted", "submission": "diff"}
    return write_json(
        tmp_path / "x.traj", {"environment": "swe_main", "trajectory": steps, "history": history, "info": info}
    )


def test_a_history(tmp_path):
    path = file_of(tmp_path, HISTORY, [step("I look."), step("I read.")])
    [chat] = check_trained(path, ANSWERS)
    assert [message["role"] for message in chat["messages"]][3:5] == ["assistant", "tool"]
    assert chat["messages"][4] == {"role": "tool", "content": "a.py", "tool_call_id": "c1"}
    assert chat["info"]["exit_status"] == "submitted"
    assert chat["left_out"][1].startswith("what history processors left out")


def test_answers_of_demonstrations_are_context(tmp_path):
    check_trained(file_of(tmp_path, [SYSTEM, DEMO, SHOWN, *HISTORY[2:]], []), ANSWERS, [assistant("Shown.")])


def test_steps_that_extend_one_history_are_one_chat(tmp_path):
    steps = [step("I look.", HISTORY[:3]), step("I read.", HISTORY[:5])]
    [chat] = check_trained(file_of(tmp_path, HISTORY, steps), ANSWERS)
    assert chat["left_out"] == ["the tools, which the log does not hold"]


def test_a_history_that_a_processor_rewrote_makes_another_chat(tmp_path):
    history = [*HISTORY, action("Done.")]
    elided = [*HISTORY[:4], {**HISTORY[4], "content": "Old output: (1 line omitted)"}, *HISTORY[5:]]
    steps = [step("I look.", HISTORY[:3]), step("I read.", HISTORY[:5]), step("Done.", elided)]
    path = file_of(tmp_path, history, steps)
    first, second = check_trained(path, [*ANSWERS, assistant("Done.")], ANSWERS)
    assert second["messages"][4]["content"].startswith("Old output")
    assert len(first["messages"]) == 6
    assert "2 answers in its context are not of a call before it" in second["untrained"][0]


def test_thinking_blocks(tmp_path):
    thought = action("I look.", LS, thinking_blocks=[{"type": "thinking", "thinking": "Files.", "signature": "s"}])
    check_trained(
        file_of(tmp_path, [SYSTEM, ISSUE, thought], []),
        [assistant("I look.", LS, reasoning_content="Files.")],
        templates=("qwen3",),
    )
    sealed = action("I look.", LS, thinking_blocks=[{"type": "redacted_thinking", "data": "s"}])
    with pytest.raises(UnsupportedError, match=r"x.traj, message 2: its reasoning is encrypted"):
        list(read(file_of(tmp_path, [SYSTEM, ISSUE, sealed], [])))


def test_two_agents_are_two_chats(tmp_path):
    other = [{**each, "agent": "reviewer"} for each in (SYSTEM, ISSUE, action("Good."))]
    first, second = check_trained(file_of(tmp_path, [*HISTORY, *other], []), [*ANSWERS, assistant("Good.")])
    assert (len(first["messages"]), len(second["messages"])) == (7, 3)


def test_a_demonstration_file_has_a_history_alone(tmp_path):
    check_trained(write_json(tmp_path / "demo.traj", {"history": HISTORY}), ANSWERS)


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        (None, InvalidInputError, "history is None; give a list of messages"),
        ([{"content": "a"}], InvalidInputError, r"history\[0\] is .*; give a list of messages with a role"),
        ([SYSTEM, action("a", tool_calls=["ls"])], InvalidInputError, r"message 1: tool_calls\[0\] is 'ls'"),
        ([SYSTEM, action("a", tool_calls=[{"function": {}}])], InvalidInputError, "has the name None"),
    ],
)
def test_an_invalid_trajectory_is_rejected(history, error, message, tmp_path):
    with pytest.raises(error, match=message):
        list(read(file_of(tmp_path, history, []), "swe_agent"))
