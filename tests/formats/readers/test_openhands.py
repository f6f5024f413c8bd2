"""Events of OpenHands, before its SDK and of it."""

import random

import pytest
from read_files import assistant, call, check_trained, write_json, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read

TOOL = {"type": "function", "function": {"name": "run", "description": "", "parameters": {"type": "object"}}}
LS = call("run", "c1", command="ls")


def response(identity, content, *calls, **more):
    message = {"role": "assistant", "content": content, "tool_calls": list(calls) or None, **more}
    return {"id": identity, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def meta(model_response, identity="c1", name="run"):
    return {
        "function_name": name,
        "tool_call_id": identity,
        "model_response": model_response,
        "total_calls_in_response": 1,
    }


def action(number, kind, source="agent", **more):
    return {"id": number, "timestamp": "2025-10-01T00:00:00", "source": source, "action": kind, "args": {}, **more}


def observation(number, content, **more):
    return {
        "id": number,
        "source": "agent",
        "observation": "run",
        "content": content,
        "cause": number - 1,
        "extras": {},
        **more,
    }


def old_events():
    model_response = response("r1", "I look.", LS)
    finish = response("r2", None, call("finish", "c2", message="One file."))
    return [
        action(0, "system", args={"content": "You are OpenHands.", "tools": [TOOL]}),
        action(1, "message", "user", args={"content": "what is here?", "image_urls": []}),
        action(2, "recall", "user"),
        {"id": 3, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
        action(4, "run", args={"command": "ls", "thought": "I look."}, tool_call_metadata=meta(model_response)),
        observation(5, "a.py", tool_call_metadata=meta(model_response)),
        action(6, "finish", tool_call_metadata=meta(finish, "c2", "finish")),
    ]


ANSWERS = [assistant("I look.", LS), assistant("", call("finish", "c2", message="One file."))]


def test_events_of_a_session(tmp_path):
    [chat] = check_trained(write_json(tmp_path / "trajectory.json", old_events()), ANSWERS)
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat["tools"] == [TOOL]
    assert chat["left_out"][1:] == ["1 of: action 'recall'", "1 of: observation 'agent_state_changed'"]


@pytest.mark.parametrize("pairs", [False, True])
def test_the_history_of_an_evaluation(pairs, tmp_path):
    events = old_events()
    history = [events[:2], events[2:4], events[4:6], events[6:]] if pairs else events
    row = {"instance_id": "astropy-1", "history": history, "test_result": {"git_patch": "diff"}, "error": None}
    [chat] = check_trained(write_lines(tmp_path / "output.jsonl", [row]), ANSWERS)
    assert chat["task"] == "astropy-1"
    assert chat["record"]["test_result"] == {"git_patch": "diff"}


def test_parallel_calls_of_one_response(tmp_path):
    model_response = response("r1", "", LS, call("run", "c2", command="pwd"))
    events = [
        *old_events()[:2],
        action(4, "run", tool_call_metadata=meta(model_response)),
        action(5, "run", tool_call_metadata=meta(model_response, "c2")),
        observation(6, "a.py", tool_call_metadata=meta(model_response)),
        observation(7, "/repo", tool_call_metadata=meta(model_response, "c2")),
        action(8, "message", args={"content": "One file."}),
    ]
    answers = [assistant("", LS, call("run", "c2", command="pwd")), assistant("One file.")]
    check_trained(write_json(tmp_path / "t.json", events), answers, templates=("qwen3", "glm4moe"))


def test_an_answer_that_a_limit_cut_is_context(tmp_path):
    model_response = response("r0", "I lo")
    model_response["choices"][0]["finish_reason"] = "length"
    events = [*old_events()[:2], action(4, "message", tool_call_metadata=meta(model_response)), *old_events()[4:]]
    [chat] = check_trained(write_json(tmp_path / "t.json", events), ANSWERS, [assistant("I lo")])
    assert chat["untrained"] == ["t.json, record 2: it was cut by a limit, so that its end was not sampled"]


def sdk(kind, **more):
    return {"kind": kind, "id": f"e{len(more)}", "timestamp": "2026-01-01T00:00:00", "source": "agent", **more}


def made_call(identity, command, response_id="r1", **more):
    arguments = f'{{"command": "{command}"}}'
    return sdk(
        "ActionEvent",
        thought=more.pop("thought", []),
        action={"kind": "TerminalAction", "command": command},
        tool_name="run",
        tool_call_id=identity,
        tool_call={"id": identity, "name": "run", "arguments": arguments, "origin": "completion"},
        llm_response_id=response_id,
        **more,
    )


def replied(identity, text):
    observed = {"kind": "TerminalObservation", "content": [{"type": "text", "text": text}], "is_error": False}
    return sdk("ObservationEvent", tool_name="run", tool_call_id=identity, action_id="e", observation=observed)


SYSTEM = sdk("SystemPromptEvent", system_prompt={"type": "text", "text": "You are OpenHands."}, tools=[TOOL])
ASKED = sdk(
    "MessageEvent",
    llm_message={"role": "user", "content": [{"type": "text", "text": "what is here?"}]},
    extended_content=[{"type": "text", "text": "Use ls."}],
)
DONE = sdk(
    "MessageEvent",
    llm_message={"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
    llm_response_id="r2",
)


def test_events_of_the_sdk_in_a_folder(tmp_path):
    events = [
        SYSTEM,
        ASKED,
        sdk("ConversationStateUpdateEvent", key="status", value="running"),
        made_call("c1", "ls", thought=[{"type": "text", "text": "I look."}], reasoning_content="Files first."),
        made_call("c2", "pwd"),
        replied("c1", "a.py"),
        sdk("AgentErrorEvent", tool_name="run", tool_call_id="c2", error="no such tool"),
        DONE,
    ]
    for number, event in enumerate(events):
        write_json(tmp_path / f"event-{number:05d}-x.json", event)
    answers = [
        assistant("I look.", LS, call("run", "c2", command="pwd"), reasoning_content="Files first."),
        assistant("Two."),
    ]
    [chat] = check_trained(tmp_path, answers, templates=("qwen3",))
    assert [each["content"] for each in chat["messages"] if each["role"] != "assistant"] == [
        "You are OpenHands.",
        "what is here?\nUse ls.",
        "a.py",
        "no such tool",
    ]
    assert chat["left_out"][1:] == ["1 of: event of kind 'ConversationStateUpdateEvent'"]


def test_token_ids_of_the_sdk_are_taken(tmp_path):
    events = [
        SYSTEM,
        ASKED,
        made_call("c1", "ls"),
        sdk("TokenEvent", prompt_token_ids=[1, 2], response_token_ids=[3, 4]),
        replied("c1", "a.py"),
        DONE,
        sdk("TokenEvent", prompt_token_ids=[1, 2, 3, 4, 5], response_token_ids=[6]),
    ]
    path = write_lines(tmp_path / "events.jsonl", events)
    batch = from_chats(read(path))
    assert batch.column("token", "token").tolist() == [3, 4, 6]
    with pytest.raises(UnsupportedError, match="1 events of tokens for 2 answers"):
        list(read(write_lines(tmp_path / "cut.jsonl", events[:-1])))


def test_sealed_reasoning(tmp_path):
    sealed = made_call("c1", "ls", responses_reasoning_item={"encrypted_content": "abc", "summary": []})
    path = write_lines(tmp_path / "e.jsonl", [SYSTEM, ASKED, sealed, replied("c1", "a.py"), DONE])
    with pytest.raises(UnsupportedError, match="line 3: its reasoning is encrypted"):
        list(read(path))
    check_trained(path, [assistant("Two.")], [assistant("", LS)], hidden_reasoning="mask", templates=("qwen3",))


def condensed(forgotten, summary=None, offset=1, identity="k1"):
    place = {} if summary is None else {"summary": summary, "summary_offset": offset}
    return {**sdk("Condensation"), "id": identity, "forgotten_event_ids": forgotten, **place}


def old_condensed(forgotten, summary, offset):
    known = {"forgotten_event_ids": forgotten} if isinstance(forgotten, list) else {}
    if isinstance(forgotten, range):
        known = {"forgotten_events_start_id": forgotten[0], "forgotten_events_end_id": forgotten[-1]}
    return action(20, "condensation", args={**known, "summary": summary, "summary_offset": offset})


def numbered(events):
    return [{**event, "id": f"n{number}"} for number, event in enumerate(events)]


CONDENSED = [
    *numbered([SYSTEM, ASKED, made_call("c1", "ls"), replied("c1", "a.py"), made_call("c2", "pwd", "r2")]),
    {**replied("c2", "/repo"), "id": "n5"},
    condensed(["n2", "n3"], "S: a.py is there.", 2),
    {**made_call("c3", "cat a.py", "r3"), "id": "n7"},
    {**replied("c3", "pass"), "id": "n8"},
]


def contents_of(chat):
    return [each["content"] or each["tool_calls"][0]["id"] for each in chat["messages"]]


def test_a_condensation_begins_another_chat(tmp_path):
    path = write_lines(tmp_path / "e.jsonl", [*CONDENSED, {**DONE, "id": "n9"}])
    pwd, cat = assistant("", call("run", "c2", command="pwd")), assistant("", call("run", "c3", command="cat a.py"))
    first, second = check_trained(path, [assistant("", LS), pwd, cat, assistant("Two.")], [pwd])
    assert contents_of(first) == ["You are OpenHands.", "what is here?\nUse ls.", "c1", "a.py", "c2", "/repo"]
    assert contents_of(second) == [
        "You are OpenHands.",
        "what is here?\nUse ls.",
        "S: a.py is there.",
        *("c2", "/repo", "c3", "pass", "Two."),
    ]
    assert second["messages"][2]["role"] == "user"
    assert first["tools"] == second["tools"] == [TOOL]


def test_a_second_condensation_removes_the_first_summary(tmp_path):
    again = condensed(["n2", "n3", "n4", "n5", "k1-summary"], "S2.", 1, "k2")
    path = write_lines(tmp_path / "e.jsonl", [*CONDENSED, again, {**DONE, "id": "n9"}])
    *_, third = read(path)
    assert contents_of(third) == ["You are OpenHands.", "S2.", "what is here?\nUse ls.", "c3", "pass", "Two."]
    assert [each.get("weight") for each in third["messages"] if each["role"] == "assistant"] == [0, None]


def test_events_of_tokens_belong_to_their_chat(tmp_path):
    events = [
        *CONDENSED[:3],
        sdk("TokenEvent", prompt_token_ids=[1, 2], response_token_ids=[3]),
        CONDENSED[3],
        condensed(["n2", "n3"], "S."),
        {**DONE, "id": "n9"},
        sdk("TokenEvent", prompt_token_ids=[1, 9], response_token_ids=[6]),
    ]
    events = [{**event, "id": event["id"] if event["id"] != "e2" else f"t{n}"} for n, event in enumerate(events)]
    batch = from_chats(read(write_lines(tmp_path / "events.jsonl", events)))
    assert batch.column("token", "token").tolist() == [3, 6]
    assert batch.num_draws == 2


@pytest.mark.parametrize("forgotten", [[4, 5], range(4, 6), range(4, 10**12)])
def test_a_condensation_before_the_sdk(forgotten, tmp_path):
    """The summary comes after two messages; the state after them is not a message, and does not count before it."""
    events = old_events()
    events = [*events[:6], old_condensed(forgotten, "S.", 2), action(21, "condensation_request"), *events[6:]]
    first, second = check_trained(write_json(tmp_path / "t.json", events), ANSWERS)
    assert contents_of(first) == ["You are OpenHands.", "what is here?", "I look.", "a.py"]
    assert contents_of(second) == ["You are OpenHands.", "what is here?", "S.", "c2"]


@pytest.mark.parametrize(
    ("events", "error", "message"),
    [
        ([action(1, "run", args={"command": "ls"})], UnsupportedError, "the action 'run' has no tool_call_metadata"),
        ([action(1, "condensation", "agent")], UnsupportedError, "does not name the events that it removed"),
        ([observation(1, "a", tool_call_metadata=meta({}, "c9"))], UnsupportedError, "it replies to the call 'c9'"),
        ([action(1, "message", "user", args={"image_urls": ["a"]})], UnsupportedError, "it has images"),
        ([action(1, "run", tool_call_metadata=meta({"id": "r"}))], InvalidInputError, "model_response.choices is "),
        ([SYSTEM, sdk("Condensation", summary="S")], UnsupportedError, "does not name the events that it removed"),
        ([SYSTEM, condensed([], "S", None)], UnsupportedError, "the place of its summary is not in the file"),
        ([SYSTEM, condensed([], "S", -1)], UnsupportedError, "the place of its summary is not in the file"),
        ([SYSTEM, condensed([], "S", True)], UnsupportedError, "the place of its summary is not in the file"),
        ([SYSTEM, condensed(["x9"], "S")], UnsupportedError, "removes the event 'x9', which is not in the file"),
        (
            [SYSTEM, condensed([], "S", 2)],
            UnsupportedError,
            "summary_offset is 2, more than the remaining messages \\(1\\)",
        ),
        ([SYSTEM, sdk("CondensationSummaryEvent", summary="S")], UnsupportedError, "without the condensation"),
        ([*CONDENSED, condensed([], "S2")], UnsupportedError, "condensed again without the summary of the first time"),
        ([*CONDENSED, condensed(["n1"])], UnsupportedError, "condensed again without the summary of the first time"),
        (
            [SYSTEM, {**made_call("c1", "ls"), "id": "a1"}, {**replied("c1", "a"), "id": "b1"}, condensed(["b1"], "S")],
            UnsupportedError,
            "keeps the call 'c1' without its reply",
        ),
        (
            [SYSTEM, {**made_call("c1", "ls"), "id": "a1"}, {**made_call("c2", "pwd"), "id": "a2"}, condensed(["a2"])],
            UnsupportedError,
            "removes a part of the response 'r1'",
        ),
        (
            [*old_events()[:4], old_condensed([1], "S", 2), action(6, "message", args={"content": "x"})],
            UnsupportedError,
            "counts events that are not messages",
        ),
        ([SYSTEM, sdk("ActionEvent", tool_name="run")], UnsupportedError, "the action has no tool_call"),
        ([SYSTEM, sdk("NewEvent", text="a")], UnsupportedError, "record 1: it is an event of kind 'NewEvent'"),
        ([SYSTEM, replied("c9", "a")], UnsupportedError, "it replies to the call 'c9'"),
    ],
)
def test_unsupported_or_invalid_events_are_refused(events, error, message):
    with pytest.raises(error, match=message):
        list(read(events, "openhands"))


def test_extended_content_and_rejections_of_tool_calls_are_read(tmp_path):
    rejected = sdk("UserRejectObservation", tool_name="run", tool_call_id="c2", rejection_reason="Not now.")
    ruled = {**replied("c1", "a.py"), "extended_content": [{"type": "text", "text": "Rule: no tabs."}]}
    events = [
        SYSTEM,
        ASKED,
        made_call("c1", "ls"),
        made_call("c2", "pwd"),
        ruled,
        rejected,
        sdk("InterruptEvent"),
        DONE,
    ]
    answers = [assistant("", LS, call("run", "c2", command="pwd")), assistant("Two.")]
    [chat] = check_trained(write_lines(tmp_path / "e.jsonl", events), answers)
    assert [each["content"] for each in chat["messages"] if each["role"] == "tool"] == [
        "a.py\nRule: no tabs.",
        "Action rejected: Not now.",
    ]
    assert "1 of: event of kind 'InterruptEvent'" in chat["left_out"]


def test_reasoning_that_only_its_provider_can_read(tmp_path):
    sealed = made_call("c1", "ls", reasoning_details=[{"type": "reasoning.encrypted", "data": "abc"}])
    path = write_lines(tmp_path / "e.jsonl", [SYSTEM, ASKED, sealed, replied("c1", "a.py"), DONE])
    with pytest.raises(UnsupportedError, match="line 3: its reasoning is encrypted"):
        list(read(path))


def session(source):
    """Return the events of a session with condensations, and the texts of each history that the model read."""
    view, histories, new, condensations = [("s", "You are OpenHands."), ("u", "what is here?\nUse ls.")], [], 0, 0
    events = [{**SYSTEM, "id": "s"}, {**ASKED, "id": "u"}]
    for turn in range(source.randint(3, 14)):
        turns = sorted({identity[1:] for identity, _ in view if identity[0] in "ao"})
        if turns and source.random() < 0.4:
            forgotten = [
                kind + number for number in source.sample(turns, source.randint(1, len(turns))) for kind in "ao"
            ]
            forgotten += [f"k{condensations}-summary"] if condensations else []
            condensations += 1
            histories += [[text for _, text in view]] if new else []
            view = [event for event in view if event[0] not in forgotten]
            offset = source.choice([at for at in range(len(view) + 1) if at == len(view) or view[at][0][0] != "o"])
            view.insert(offset, (f"k{condensations}-summary", f"S{condensations}"))
            events.append(condensed(forgotten, f"S{condensations}", offset, f"k{condensations}"))
            new = 0
            continue
        events.append({**made_call(f"c{turn}", f"echo {turn}", f"r{turn}"), "id": f"a{turn}"})
        events.append({**replied(f"c{turn}", f"out {turn}"), "id": f"o{turn}"})
        if source.random() < 0.3:
            events.append({**sdk("ConversationStateUpdateEvent"), "id": f"x{turn}"})
        view += [(f"a{turn}", f"c{turn}"), (f"o{turn}", f"out {turn}")]
        new += 1
    return events, [*histories, *([[text for _, text in view]] if new else [])]


def test_histories_of_any_condensations_are_those_that_the_model_read():
    repeated = 0
    for seed in range(100):
        events, histories = session(random.Random(seed))
        chats = list(read(events, "openhands"))
        assert [contents_of(chat) for chat in chats] == histories, seed
        answers = [each for chat in chats for each in chat["messages"] if each["role"] == "assistant"]
        sampled = sum(event["kind"] == "ActionEvent" for event in events)
        assert sum(each.get("weight") != 0 for each in answers) == sampled, "each answer is trained once"
        repeated += len(answers) - sampled
    assert repeated > 50
