"""Logs of Inspect, as JSON and as a zip, whose members may be compressed by Zstandard."""

import json
import struct
import zipfile
import zlib

import pytest
import zstandard
from read_files import assistant, call, check_trained, write_json

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read, to_chats

ZSTANDARD = 93
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
INFO = {"name": "weather", "description": "Looks it up.", "parameters": PARAMETERS}


def message(role, content, **more):
    return {"id": f"{role}-{content!r:.20}", "role": role, "content": content, "metadata": None, **more}


def answer(content, *calls, source="generate", **more):
    tool_calls = [
        {"id": each["id"], "function": each["function"]["name"], "arguments": arguments, "type": "function"}
        for each in calls
        for arguments in [json.loads(each["function"]["arguments"])]
    ]
    return message("assistant", content, source=source, model="mockllm/model", tool_calls=tool_calls or None, **more)


def generated(reply, stop="stop", tools=(INFO,)):
    output = {"model": "m", "choices": [{"message": reply, "stop_reason": stop}]}
    return {"event": "model", "tools": list(tools), "input": [], "output": output}


USER = message("user", "how warm?", source="input")
LOOKS = answer("I look.", call(city="Oslo"))
REPLY = message("tool", "4 degrees", tool_call_id="c1", function="weather", error=None)
COLD = answer([{"type": "text", "text": "Cold."}])
ANSWERS = [assistant("I look.", call(city="Oslo")), assistant("Cold.")]


def sample(identity, messages, value="C", events=None, **more):
    replies = [each for each in messages if each["role"] == "assistant"]
    scores = {"includes": {"value": value, "answer": "Cold.", "explanation": None}} if value is not None else None
    events = [generated(each) for each in replies] if events is None else events
    return {
        "id": identity,
        "epoch": 1,
        "target": "Cold",
        "messages": messages,
        "scores": scores,
        "metadata": {},
        "events": [{"event": "sample_init"}, *events],
        "attachments": {},
        "error": None,
        **more,
    }


def header(**more):
    return {"version": 2, "status": "success", "eval": {"task": "weather", "model": "mockllm/model"}, **more}


def pack(path, samples, zstd=False):
    """Return a zip in Inspect's format; the standard library cannot write Zstandard, so heads are corrected."""
    members = {"_journal/start.json": {}, "header.json": header(), "summaries.json": []}
    members |= {f"samples/{each['id']}_epoch_{each['epoch']}.json": each for each in samples}
    texts = {name: json.dumps(value).encode() for name, value in members.items()}
    method = zipfile.ZIP_STORED if zstd else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, text in texts.items():
            archive.writestr(name, zstandard.compress(text) if zstd else text)
    if not zstd:
        return path
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        at = archive.start_dir
    for info in infos:
        text = texts[info.filename]
        for base, where in ((info.header_offset, 8), (at, 10)):
            struct.pack_into("<H", content, base + where, ZSTANDARD)
            struct.pack_into("<I", content, base + where + 6, zlib.crc32(text))
            struct.pack_into("<I", content, base + where + 14, len(text))
        at += 46 + len(info.filename)
    path.write_bytes(content)
    return path


def test_a_log_as_json(tmp_path):
    path = write_json(tmp_path / "log.json", header(samples=[sample(1, [USER, LOOKS, REPLY, COLD])]))
    [chat] = check_trained(path, ANSWERS)
    assert chat["messages"][2] == {"role": "tool", "content": "4 degrees", "tool_call_id": "c1", "name": "weather"}
    assert chat["tools"] == [{"type": "function", "function": INFO}]
    assert (chat["task"], chat["reward"], chat["success"], chat["record"]["epoch"]) == ("weather/1", 1.0, True, 1)


@pytest.mark.parametrize("zstd", [False, True])
def test_a_log_as_a_zip(zstd, tmp_path):
    second = sample(1, [USER, COLD], "I") | {"epoch": 2}
    path = pack(tmp_path / "log.eval", [sample(1, [USER, LOOKS, REPLY, COLD]), second], zstd)
    chats = check_trained(path, [*ANSWERS, assistant("Cold.")])
    assert [chat["reward"] for chat in chats] == [1.0, 0.0]
    batch = from_chats(chats, _tokenizer())
    assert batch.num_groups == 1  # the epochs of a sample


def _tokenizer():
    from chat_gallery import gallery_tokenizer

    return gallery_tokenizer("qwen3")


def test_a_damaged_member_is_refused(tmp_path):
    path = pack(tmp_path / "log.eval", [sample(1, [USER, COLD])], zstd=True)
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<I", zlib.crc32(json.dumps(header()).encode())), b"\0\0\0\0"))
    with pytest.raises(InvalidInputError, match=r"log\.eval, header\.json is damaged"):
        list(read(path))


def test_answers_that_were_given_cut_or_not_parsed_are_context(tmp_path):
    input_answer, truncated = answer("yo", source="input"), answer("Co")
    broken = answer("", call(city="Oslo"))
    broken["tool_calls"][0]["parse_error"] = "not JSON"
    log = sample(1, [message("user", "hi"), input_answer, USER, truncated, USER, broken, REPLY, COLD])
    log["events"][2] = generated(truncated, "max_tokens")
    path = write_json(tmp_path / "log.json", header(samples=[log]))
    others = [assistant("yo"), assistant("Co"), assistant("", call(city="Oslo"))]
    [chat] = check_trained(path, [assistant("Cold.")], others)
    assert [reason.rpartition(": ")[2] for reason in chat["untrained"]] == [
        "it was given, not generated",
        "it was cut by a limit, so that its end was not sampled",
        "a call could not be parsed, and is not in the log as it was written",
    ]


def test_reasoning(tmp_path):
    reply = answer([{"type": "reasoning", "reasoning": "It is winter."}, {"type": "text", "text": "Cold."}])
    path = write_json(tmp_path / "log.json", header(samples=[sample(1, [USER, reply])]))
    check_trained(path, [assistant("Cold.", reasoning_content="It is winter.")], templates=("qwen3",))
    sealed = answer([{"type": "reasoning", "reasoning": "gAAA", "redacted": True}, {"type": "text", "text": "Cold."}])
    path = write_json(tmp_path / "log.json", header(samples=[sample(1, [USER, COLD, USER, sealed])]))
    with pytest.raises(UnsupportedError, match=r"log\.json, sample 0, message 3: its reasoning is redacted"):
        list(read(path))
    check_trained(path, [assistant("Cold.")], [assistant("Cold.")], hidden_reasoning="mask")


def test_long_texts_are_attachments(tmp_path):
    long = {**REPLY, "content": "attachment://abc"}
    log = sample(1, [USER, LOOKS, long, COLD], attachments={"abc": "4 degrees, and so on"})
    path = write_json(tmp_path / "log.json", header(samples=[log]))
    [chat] = check_trained(path, ANSWERS)
    assert chat["messages"][2]["content"] == "4 degrees, and so on"
    path = write_json(tmp_path / "log.json", header(samples=[{**log, "attachments": {}}]))
    with pytest.raises(InvalidInputError, match="sample 0: the attachment 'abc' is missing"):
        list(read(path))


def test_the_error_of_a_tool_is_the_content_of_its_message(tmp_path):
    failed = {**REPLY, "content": "", "error": {"type": "timeout", "message": "Timed out."}}
    path = write_json(tmp_path / "log.json", header(samples=[sample(1, [USER, LOOKS, failed, COLD])]))
    [chat] = read(path)
    assert chat["messages"][2]["content"] == "Timed out."


@pytest.mark.parametrize(
    ("value", "reward", "success"),
    [
        ("C", 1.0, True),
        ("P", 0.5, None),
        (0.25, 0.25, None),
        (True, 1.0, True),
        ({"a": 1}, None, None),
        (None, None, None),
    ],
)
def test_scores(value, reward, success, tmp_path):
    [chat] = read(write_json(tmp_path / "log.json", header(samples=[sample(1, [USER, COLD], value)])))
    assert (chat.get("reward"), chat.get("success")) == (reward, success)


def test_two_scorers_give_no_reward(tmp_path):
    log = sample(1, [USER, COLD])
    log["scores"]["match"] = {"value": "I"}
    [chat] = read(write_json(tmp_path / "log.json", header(samples=[log])))
    assert "reward" not in chat
    assert set(chat["record"]["scores"]) == {"includes", "match"}


@pytest.mark.parametrize(
    ("log", "error", "message"),
    [
        (
            header(samples=[sample(1, [USER, COLD], events=[{"event": "compaction", "type": "summary"}])]),
            UnsupportedError,
            "sample 0, message 1: the history was compacted, and no event of the log has the input of the call",
        ),
        (header(samples=None), UnsupportedError, "a log without its samples"),
        (header(samples=[{"id": 1}]), InvalidInputError, "sample 0: messages is None"),
        (header(samples=[sample(1, [{"role": None}], events=[])]), InvalidInputError, "message 0: role is None"),
        (
            header(samples=[sample(1, [message("user", [{"type": "image", "image": "data:"}]), COLD])]),
            UnsupportedError,
            "message 0: it holds a part of type 'image'",
        ),
        (
            header(samples=[sample(1, [USER, COLD], events=[generated(COLD), generated(COLD, tools=[{"name": "a"}])])]),
            UnsupportedError,
            "the model was given other tools in some turns",
        ),
    ],
)
def test_invalid_and_unsupported_logs_are_rejected(log, error, message, tmp_path):
    with pytest.raises(error, match=message):
        list(read(write_json(tmp_path / "log.json", log)))


def test_all_of_a_sample_but_its_messages_and_events_is_kept():
    more = {
        "input": "how warm?",
        "choices": ["a"],
        "sandbox": {"type": "docker"},
        "model_usage": {"m": {"input_tokens": 3}},
        "output": {"model": "m", "completion": "attachment://a1"},
        "attachments": {"a1": "Cold."},
        # fields with the names of ours, but other meanings
        "group": "another",
        "success": "maybe",
        "turns": [{"text": "no"}],
        "input_ids": [5],
        "record": {"a": 0},
    }
    log = sample(1, [USER, COLD], limit={"type": "token", "limit": 9}, store={"a": 0}, total_time=1.5, **more)
    [chat] = read([header(samples=[log])])
    other_fields = {name: value for name, value in log.items() if name not in ("messages", "events", "attachments")}
    assert chat["record"] == other_fields | {"output": {"model": "m", "completion": "Cold."}}
    assert chat.keys() == {"messages", "task", "tools", "reward", "success", "record"}
    [back] = to_chats(from_chats([chat], _tokenizer()))
    assert back == chat


SYSTEM = message("system", "Be brief.")
SUMMARY = message("user", "Summary: Oslo has 4 degrees.")
COMPACTED = {"event": "compaction", "type": "summary", "source": "inspect", "tokens_before": 90, "tokens_after": 20}


def called(read, reply, **more):
    return {**generated(reply, **more), "input": list(read)}


@pytest.mark.parametrize("pooled", [False, True])
def test_a_compacted_history_is_read_as_the_model_read_it(pooled, tmp_path):
    """The answer after the summary read the summary; the summary comes from another call, and is not trained."""
    summed = answer("Oslo has 4 degrees.")
    inputs = [[SYSTEM, USER], [SYSTEM, USER, LOOKS, REPLY, SUMMARY], [SYSTEM, SUMMARY]]
    events = [called(inputs[0], LOOKS), called(inputs[1], summed), COMPACTED, called(inputs[2], COLD)]
    log = sample(1, [SYSTEM, USER, LOOKS, REPLY, SUMMARY, COLD], events=events)
    if pooled:
        pool = [SYSTEM, USER, {**LOOKS, "content": "attachment://a1"}, REPLY, SUMMARY]
        log["attachments"] = {"a1": LOOKS["content"]}
        log["events_data"] = {"messages": pool, "calls": []}
        for event, refs in zip((events[0], events[1], events[3]), ([[0, 2]], [[0, 5]], [[0, 1], [4, 5]]), strict=True):
            event |= {"input": [], "input_refs": refs}
    first, second = check_trained(write_json(tmp_path / "log.json", header(samples=[log])), ANSWERS)
    assert [each["content"] for each in first["messages"]] == ["Be brief.", "how warm?", "I look."]
    assert [each["content"] for each in second["messages"]] == ["Be brief.", SUMMARY["content"], "Cold."]
    assert first["tools"] == second["tools"] == [{"type": "function", "function": INFO}]
    assert (second["task"], second["reward"], second["record"]["epoch"]) == ("weather/1", 1.0, 1)


def test_a_history_whose_replies_were_cleared_begins_another_chat():
    """As the strategy `edit` does, without a trace in the messages of the sample."""
    cleared = {**REPLY, "content": "(cleared)"}
    second = answer("Again.")
    question = message("user", "and now?", source="input")
    events = [
        called([USER], LOOKS),
        called([USER, LOOKS, REPLY], COLD),
        called([USER, LOOKS, cleared, COLD, question], second),
    ]
    chats = list(read([header(samples=[sample(1, [USER, LOOKS, REPLY, COLD, question, second], events=events)])]))
    assert [[each["content"] for each in chat["messages"]] for chat in chats] == [
        ["how warm?", "I look.", "4 degrees", "Cold."],
        ["how warm?", "I look.", "(cleared)", "Cold.", "and now?", "Again."],
    ]
    assert [each.get("weight") for each in chats[1]["messages"] if each["role"] == "assistant"] == [0, 0, None]


def test_a_history_that_was_not_rewritten_is_one_chat():
    events = [called([USER], LOOKS), called([USER, LOOKS, REPLY], COLD)]
    [chat] = read([header(samples=[sample(1, [USER, LOOKS, REPLY, COLD], events=events)])])
    [plain] = read([header(samples=[sample(1, [USER, LOOKS, REPLY, COLD])])])
    assert chat["messages"] == plain["messages"]


def test_an_input_that_the_log_lacks_is_refused():
    events = [{**called([], COLD), "input_refs": [[0, 2]]}, COMPACTED]
    log = sample(1, [USER, COLD], events=events, events_data={"messages": [USER], "calls": []})
    with pytest.raises(
        InvalidInputError, match=r"message 1: input_refs\[0\] is \[0, 2\], but the pool of the sample has 1 messages"
    ):
        list(read([header(samples=[log])]))
