"""Files: JSON, JSON lines, gzip, byte order marks, line ends, Parquet, and rejected files."""

import gzip
import json

import polars as pl
import pytest
from read_files import write_json, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read

CHAT = {"messages": [{"role": "user", "content": "how warm is it?"}, {"role": "assistant", "content": "Cold."}]}
OTHER = {"messages": [{"role": "user", "content": "Où?"}, {"role": "assistant", "content": "Là."}], "task": "where"}


def test_lines_json_gzip_marks_and_line_ends_are_the_same(tmp_path):
    rows = [CHAT, OTHER]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    files = {
        "lines.jsonl": lines.encode(),
        "windows.jsonl": lines.replace("\n", "\r\n").encode(),
        "mark.jsonl": b"\xef\xbb\xbf" + lines.encode(),
        "blank.jsonl": b"\n\r\n" + lines.replace("\n", "\n\n").encode(),
        "open.jsonl": lines.rstrip().encode(),
        "packed.jsonl.gz": gzip.compress(lines.encode()),
        "list.json": json.dumps(rows).encode(),
        "indented.json": b"\xef\xbb\xbf" + json.dumps(rows, indent=2).replace("\n", "\r\n").encode(),
        "packed.json.gz": gzip.compress(json.dumps(rows, indent=2).encode()),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert list(read(tmp_path / name)) == rows, name
    assert list(read(iter(rows))) == rows


def test_one_record_is_a_file_too(tmp_path):
    for name, text in (("one.json", json.dumps(CHAT, indent=1)), ("one.jsonl", json.dumps(CHAT) + "\n")):
        (tmp_path / name).write_text(text)
        assert list(read(tmp_path / name)) == [CHAT]


def test_messages_alone_are_a_chat(tmp_path):
    """mini-swe-agent stores a list of messages, data sets a list in each line."""
    assert list(read(write_json(tmp_path / "one.json", CHAT["messages"]))) == [CHAT]
    rows = [CHAT["messages"], OTHER["messages"]]
    assert list(read(write_lines(tmp_path / "lines.jsonl", rows))) == [{"messages": each} for each in rows]


def test_parquet(tmp_path):
    path = tmp_path / "chats.parquet"
    pl.DataFrame([CHAT, {"messages": OTHER["messages"]}]).write_parquet(path)
    assert list(read(path)) == [CHAT, {"messages": OTHER["messages"]}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'file.jsonl' is empty"),
        (b"\n \r\n", "'file.jsonl' is empty"),
        (json.dumps(CHAT).encode() + b'\n{"messages": [', r"file.jsonl, line 2 is not JSON"),
        (b'{"messages": [', "file.jsonl, line 1, column 15: neither JSON nor JSON lines"),
        (b'{"a": 1,\n "b": }', "file.jsonl, line 2, column 7"),
        (json.dumps(CHAT).encode("utf-16"), "not UTF-8"),
        (
            gzip.compress(json.dumps(CHAT).encode(), mtime=0)[:40],
            "'file.jsonl' is damaged",
        ),
        (b"PK\x03\x04broken", "'file.jsonl' is a damaged zip"),
    ],
)
def test_invalid_record_files_are_refused(tmp_path, content, message):
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        list(read(path))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"missing\.jsonl' cannot be read"):
        list(read(tmp_path / "missing.jsonl"))
    with pytest.raises(InvalidInputError, match=r"has no \.json files"):
        list(read(tmp_path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"instruction": "add", "output": "4"}], "in no known format .*instruction, output"),
        ([7], "in no known format"),
        ([], "the rows has no record"),
        ([{"conversations": [], "prompt": "a", "completion": "b"}], "could be prompt_completion or sharegpt; give one"),
    ],
)
def test_a_format_that_is_not_clear_is_refused(rows, message):
    with pytest.raises(InvalidInputError, match=message):
        list(read(rows))


def test_names_of_formats_and_options():
    with pytest.raises(InvalidInputError, match="format: 'alpaca' is not known; give one of agent_lightning, chats"):
        list(read([CHAT], "alpaca"))
    with pytest.raises(InvalidInputError, match="hidden_reasoning: 'drop' is not known"):
        list(read([CHAT], hidden_reasoning="drop"))
    assert list(read([CHAT], "chats")) == [CHAT]


def test_a_record_of_another_format_among_them():
    with pytest.raises(InvalidInputError, match="record 1: messages is"):
        list(read([CHAT, {"conversations": []}]))
    with pytest.raises(InvalidInputError, match="record 1 is None"):
        list(read([CHAT, None]))


def test_a_file_that_can_run_code_is_not_loaded(tmp_path):
    import pickle

    import torch

    class Runs:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"samples": [Runs()]}, tmp_path / "bad.pt", pickle_module=pickle)
    with pytest.raises(UnsupportedError, match="which are not loaded since they can run code"):
        list(read(tmp_path / "bad.pt"))


HUGE = "1" + "0" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f'{{"messages": [], "x": {HUGE}}}',
        f'{{"messages": [],\n "x": {HUGE}}}',
        f'{{"messages": []}}\n{{"x": {HUGE}}}\n',
        '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_json_that_python_cannot_hold_is_refused(text, tmp_path):
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"odd\.jsonl.*: the (value at character 0|JSON) cannot be read"):
        list(read(path))


@pytest.mark.parametrize(
    "record",
    [
        {"input": "a", "output": "b", "score": 10**400, "step": 1},
        {"tokens": [1, 2, 3], "response_length": 1, "reward": 10**400},
    ],
)
def test_a_reward_that_no_float_holds_is_refused(record):
    with pytest.raises(InvalidInputError, match=r"record 0.*int too large"):
        list(read([record]))
    with pytest.raises(InvalidInputError, match="chat 0: reward is beyond the range of a float"):
        from_chats([{"prompt_ids": [1], "completion_ids": [2], "reward": 10**400}])
