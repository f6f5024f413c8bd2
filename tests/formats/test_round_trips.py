"""Written records are read and written again unchanged: of each format, of joined runs, with unknown fields."""

import json
import random

import pytest
from chat_gallery import TOOLS, gallery_tokenizer

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.integrations.trajectories import (
    from_atif,
    from_chats,
    from_verifiers,
    to_atif,
    to_chats,
    to_verifiers,
)

VALUES = (0, False, None, "", [], {}, [None], {"a": [1, {"b": None}]}, 1.5, "text")


@pytest.fixture(scope="module")
def formats():
    """Formats, each with a record strategy, a reader and a writer."""
    tokenizer = gallery_tokenizer("qwen3")
    return {
        "chats": (chat, lambda records: from_chats(records, tokenizer), lambda batch: list(to_chats(batch))),
        "atif": (atif, lambda records: from_atif(records, tokenizer), lambda batch: list(to_atif(batch))),
        "verifiers": (trace, from_verifiers, lambda batch: list(to_verifiers(batch))),
    }


class Source(random.Random):
    """Random values of records."""

    def more(self):
        """An unknown field, or none."""
        return {self.choice(["x", "_y", "note", "ünï"]): self.choice(VALUES)} if self.random() < 0.6 else {}

    def maybe(self, **values):
        """A subset of some fields, each with one of its values."""
        return {name: self.choice(each) for name, each in values.items() if self.random() < 0.6}


def chat(source):
    messages = [{"role": source.choice(["system", "developer"]), "content": "Be brief.", **source.more()}]
    for turn in range(source.randint(1, 3)):
        parts = [{"type": "text", "text": "how", **source.more()}, {"type": "text", "text": "warm?"}]
        messages.append({"role": "user", "content": source.choice(["how warm?", parts]), **source.more()})
        if source.random() < 0.5:
            arguments = source.choice(['{"city": "Oslo"}', {"city": "Oslo", "near": {"km": [1, None]}}])
            function = {"name": "weather", "arguments": arguments, **source.more()}
            called = {"id": f"c{turn}", "type": "function", "function": function, **source.more()}
            content = source.choice([None, "", "I look."])
            messages.append({"role": "assistant", "content": content, "tool_calls": [called], **source.more()})
            messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": "4", **source.more()})
        thought = source.maybe(reasoning_content=["It is winter."], weight=[1])
        messages.append({"role": "assistant", "content": "Cold.", **thought, **source.more()})
    facts = source.maybe(task=["t", "u", ""], group=["g", "h"], reward=[0, 1, 0.1, None], success=[True, False, None])
    return {"messages": messages, **source.maybe(tools=[TOOLS, json.dumps(TOOLS), []]), **facts, **source.more()}


def atif(source):
    steps, read = [], []
    for turn in range(source.randint(1, 3)):
        steps.append({"source": "user", "message": source.choice(["hi", [{"type": "text", "text": "hi"}]])})
        # Without ids the writer adds those of the chat template.
        prompt, answer = [*read, 1, 2], [5, 6, 7 + turn]
        metrics = {"prompt_token_ids": prompt, "completion_token_ids": answer, "logprobs": [-0.1, -0.2, -0.3]}
        step = {"source": "agent", "message": "Cold.", "metrics": {**metrics, **source.more()}}
        if source.random() < 0.5:
            called = {"tool_call_id": f"c{turn}", "function_name": "weather", "arguments": {}, **source.more()}
            result = {"source_call_id": f"c{turn}", "content": source.choice(["4", None]), **source.more()}
            step |= {"tool_calls": [called], "observation": {"results": [result], **source.more()}}
        extra = {**source.maybe(reward=[0, 0.5, 1]), **source.more()}
        steps.append({**step, **source.maybe(reasoning_content=["why"], extra=[extra])})
        read = prompt + answer
    steps = [{"step_id": number, **step, **source.more()} for number, step in enumerate(steps, 1)]
    agent = {"name": "a", "version": "1", **source.maybe(tool_definitions=[TOOLS]), **source.more()}
    extra = {**source.maybe(task=["k"], group=["g"], reward=[0, 1, 0.1], success=[True, False]), **source.more()}
    head = {"schema_version": "ATIF-v1.7", "session_id": source.choice(["s", "t"]), "agent": agent}
    return {**head, "steps": steps, **source.maybe(extra=[extra]), **source.more()}


def trace(source):
    message = {"role": "user", "content": "hi", **source.more()}
    nodes = [{"parent": None, "message": message, "token_ids": [1, 2], "mask": [False] * 2, "sampled": False}]
    for turn in range(source.randint(1, 3)):
        answer = {"role": "assistant", "content": "Cold.", **source.more()}
        token_fields = {
            "token_ids": [3, 4, 5 + turn],
            "mask": [False, True, True],
            "sampled": True,
            "logprobs": [-0.5, -0.25],
        }
        nodes.append({"parent": source.choice([0, len(nodes) - 1]), "message": answer, **token_fields, **source.more()})
        reply = {"role": "tool", "content": "4", **source.more()}
        reply_fields = {"token_ids": [9], "mask": [False], "sampled": False}
        nodes.append({"parent": len(nodes) - 1, "message": reply, **reply_fields, **source.more()})
    right = {"score": source.choice([0, 1, 0.3]), "weight": source.choice([1, 2.0, None]), **source.more()}
    task = {"type": "T", "data": {}, "key": source.choice(["k", "l"]), **source.more()}
    more = source.maybe(rewards=[{"right": right}, {}], info=[{"a": None}, {}], tools=[TOOLS])
    return {"version": 1, "task": task, "nodes": nodes, **more, **source.more()}


@pytest.mark.parametrize("name", ["chats", "atif", "verifiers"])
@pytest.mark.parametrize("seed", range(6))
def test_records_come_back_also_of_joined_runs(formats, name, seed):
    make, read, write = formats[name]
    source = Source(f"{name} {seed}")
    first, second = ([make(source) for _ in range(3)] for _ in range(2))
    records = write(read(first))
    assert records == first
    assert write(read(records)) == first
    joined = records + write(read(second))
    assert write(read(joined)) == first + second


@pytest.mark.parametrize("other", ["chats", "atif", "verifiers"])
@pytest.mark.parametrize("name", ["chats", "atif", "verifiers"])
def test_records_of_another_format_come_back_as_they_were_written(formats, name, other):
    make, read, _ = formats[name]
    _, read_other, write_other = formats[other]
    source = Source(f"{name} {other}")
    compared = 0
    for _ in range(24):
        batch = read([make(source)])
        try:
            records = write_other(batch)
        except UnsupportedError:  # a chat with several contexts, which the other format does not support
            continue
        assert write_other(read_other(records)) == records
        compared += 1
    assert compared >= 4
