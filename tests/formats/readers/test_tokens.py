"""Token ids with labels or masks, of prompts and completions, and of many turns: read unchanged."""

import gzip
import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from chat_gallery import gallery_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from read_files import write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import from_chats, read, to_chats

IDS = [5, 6, 7, 8, 9, 10]
LABELS = [-100, -100, 7, -100, 9, -100]


def turns_of(batch):
    """Return context and action of each turn, and whether it is trained."""
    contexts, tokens = batch.contexts(), batch.column("token", "token").tolist()
    bounds = list(pairwise(batch.offsets("token").tolist()))
    mask = batch.column("trainable", "token").tolist() if batch.has("trainable", "token") else [True] * len(tokens)
    turns = []
    for place, begin in enumerate(contexts.offsets[:-1]):
        for step in range(int(contexts.steps[place]), int(contexts.steps[place + 1])):
            first, last = bounds[step]
            context = contexts.tokens[int(begin) : int(begin) + int(contexts.begins[step])].tolist()
            turns.append((context, tokens[first:last], mask[first]))
    return turns


MASK = [0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "row",
    [
        {"labels": LABELS},
        {"labels": LABELS, "attention_mask": [1] * 6, "position_ids": list(range(6)), "assistant_masks": MASK},
        {"completion_mask": MASK},
        {"assistant_masks": MASK},
        {"loss_mask": [1, 0, 1, 0]},
        {"response_mask": [True, False, True, False]},
        {"labels": None, "loss_mask": [float(value) for value in MASK]},
    ],
)
def test_every_run_of_trained_tokens_is_a_turn(row, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"input_ids": IDS, "source": "here", **row}], "\r\n")
    batch = from_chats(read(path))
    assert turns_of(batch) == [([5, 6], [7], True), ([5, 6, 7, 8], [9], True)]
    [back] = to_chats(batch, gallery_tokenizer("llama3"))
    assert back["tokens_after"] == [10]
    assert back["source"] == "here"
    assert "input_ids" not in back


def test_padding_on_either_side_is_dropped():
    left = {"input_ids": [0, 0, 5, 6], "labels": [-100, -100, -100, 6], "attention_mask": [0, 0, 1, 1]}
    right = {"input_ids": [5, 6, 0, 0], "labels": [-100, 6, -100, -100], "attention_mask": [1, 1, 0, 0]}
    assert turns_of(from_chats([left, right])) == [([5], [6], True)] * 2


def test_log_probs_of_trained_tokens_or_of_all():
    of_trained = {"input_ids": IDS, "labels": LABELS, "logprobs": [-0.5, -0.25]}
    of_all = {"input_ids": IDS, "labels": LABELS, "logprobs": [0.0, 0.0, -0.5, 0.0, -0.25, 0.0]}
    for row in (of_trained, of_all):
        assert from_chats([row]).column("behaviour_logprob", "token").tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    "names",
    [
        ("prompt_ids", "completion_ids", "logprobs"),
        ("prompt_token_ids", "completion_token_ids", "completion_logprobs"),
        ("prompt_token_ids", "response_token_ids", "logprobs"),
    ],
)
def test_prompts_and_completions(names):
    row = dict(zip(names, ([5, 6], [7, 8], [-0.5, -0.25]), strict=True))
    batch = from_chats(read([{**row, "reward": 1.0, "task": "t"}]))
    assert turns_of(batch) == [([5, 6], [7, 8], True)]
    assert batch.column("behaviour_logprob", "token").tolist() == [-0.5, -0.25]
    assert batch.column("reward", "draw").tolist() == [1.0]


def test_tokens_of_tools_in_a_completion_are_not_trained():
    row = {
        "prompt_ids": [5],
        "completion_ids": [6, 7, 8, 9],
        "completion_mask": [1, 0, 0, 1],
        "logprobs": [-1, 0, 0, -2],
    }
    batch = from_chats([row])
    assert turns_of(batch) == [([5], [6], True), ([5, 6, 7, 8], [9], True)]
    assert batch.column("behaviour_logprob", "token").tolist() == [-1.0, -2.0]


def test_turns_with_rewards_and_weights():
    turns = [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "reward": 0.5},
        {"prompt_token_ids": [1, 2, 3, 4], "completion_token_ids": [5], "weight": 0},
        {"prompt_token_ids": [1, 9], "completion_token_ids": [6], "logprobs": [-0.5]},  # the history was rewritten
    ]
    batch = from_chats([{"turns": turns}])
    assert turns_of(batch) == [([1, 2], [3], True), ([1, 2, 3, 4], [5], False), ([1, 9], [6], True)]
    rewards = batch.column("reward", "step").tolist()
    assert rewards[0] == 0.5
    assert np.isnan(rewards[1:]).all()


def test_ids_and_messages_in_one_record_take_the_ids():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    [row] = read([{"messages": messages, "prompt_ids": [5], "completion_ids": [6]}])
    batch = from_chats([row])
    assert turns_of(batch) == [([5], [6], True)]
    assert next(iter(to_chats(batch)))["messages"] == messages


def test_arrays_tensors_parquet_and_gzip(tmp_path):
    import torch

    row = {"input_ids": IDS, "labels": LABELS}
    expected = turns_of(from_chats([row]))
    arrays = {name: np.array(value) for name, value in row.items()}
    tensors = {name: torch.tensor(value) for name, value in row.items()}
    pl.DataFrame([row]).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    for source in ([arrays], [tensors], tmp_path / "a.parquet", tmp_path / "a.jsonl.gz"):
        assert turns_of(from_chats(read(source))) == expected


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=40))
def test_the_trained_tokens_are_those_of_the_mask(pairs):
    ids, mask = [3, *(token for token, _ in pairs)], [False, *(trained for _, trained in pairs)]
    row = {"input_ids": ids, "labels": [token if trained else -100 for token, trained in zip(ids, mask, strict=True)]}
    if not any(mask):
        with pytest.raises(InvalidInputError, match="trains no token"):
            from_chats([row])
        return
    turns = turns_of(from_chats([row]))
    assert [token for _, action, _ in turns for token in action] == [i for i, t in zip(ids, mask, strict=True) if t]
    assert all(context + action == ids[: len(context) + len(action)] for context, action, _ in turns)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"input_ids": IDS}, InvalidInputError, "chat 0 has input_ids, but no labels and no mask"),
        ({"input_ids": IDS, "labels": [-100] * 6}, InvalidInputError, "labels trains no token"),
        ({"input_ids": IDS, "labels": IDS}, InvalidInputError, "labels trains the first token, which has no context"),
        ({"input_ids": IDS, "labels": [-100]}, InvalidInputError, r"labels has shape \(1,\), but input_ids has \(6,\)"),
        ({"input_ids": IDS, "labels": [-100, 7, 8, 9, 10, -100]}, InvalidInputError, "labels is shifted by one"),
        (
            {"input_ids": IDS, "labels": [-100, 1, 2, 3, -100, -100]},
            InvalidInputError,
            r"labels\[1\] is 1, but input_ids\[1\] is",
        ),
        ({"input_ids": IDS, "loss_mask": [1] * 7}, InvalidInputError, "loss_mask has 7 values for 6 input_ids"),
        ({"input_ids": IDS, "loss_mask": [0, 0, 0, 0, 0, 0.5]}, UnsupportedError, r"loss_mask\[5\] is 0\.5"),
        (
            {"input_ids": IDS, "labels": LABELS, "loss_mask": [1, 1, 1, 1]},
            InvalidInputError,
            "loss_mask trains token 3, but labels does not; leave one of them out",
        ),
        (
            {"input_ids": IDS, "labels": LABELS, "attention_mask": [1, 1, 0, 1, 1, 1]},
            InvalidInputError,
            r"attention_mask\[2\] is 0 \(padding\), but this token is trained",
        ),
        (
            {"input_ids": IDS, "loss_mask": [1, 1], "attention_mask": [1, 1, 1, 1, 0, 0]},
            InvalidInputError,
            "loss_mask has 2 values for 6 input_ids; give one for each",
        ),
        (
            {"input_ids": IDS, "labels": LABELS, "position_ids": [0, 1, 2, 0, 1, 2]},
            UnsupportedError,
            r"position_ids\[3\] is 0 after 2, as in packed sequences",
        ),
        ({"input_ids": [IDS], "labels": [LABELS]}, InvalidInputError, "input_ids has 2 dimensions"),
        (
            {"input_ids": [5.5, 6.0], "labels": [-100, 6]},
            InvalidInputError,
            r"input_ids\[0\] is 5\.5; give a whole number",
        ),
        (
            {"input_ids": [5, np.float64(6)], "loss_mask": [0, 1]},
            InvalidInputError,
            r"input_ids\[1\] is 6\.0; give a whole number",
        ),
        ({"input_ids": [5, -6], "loss_mask": [0, 1]}, InvalidInputError, r"input_ids\[1\] is -6"),
        ({"input_ids": [5, 1 << 40], "loss_mask": [0, 1]}, InvalidInputError, rf"input_ids\[1\] is {1 << 40}"),
        (
            {"input_ids": IDS, "labels": LABELS, "logprobs": [-1.0]},
            InvalidInputError,
            r"logprobs has shape \(1,\) for 6 tokens, 2 of them",
        ),
        (
            {"input_ids": IDS, "labels": LABELS, "logprobs": [-1.0, float("nan")]},
            InvalidInputError,
            r"the log-prob of trained token 1 \(counted from 0\) is nan; give a finite number",
        ),
        ({"prompt_ids": [5], "completion_ids": []}, InvalidInputError, "1 prompt tokens and 0 completion tokens"),
        ({"prompt_ids": [], "completion_ids": [5]}, InvalidInputError, "0 prompt tokens and 1 completion tokens"),
        (
            {"prompt_ids": [5], "completion_ids": [6], "completion_mask": [0]},
            InvalidInputError,
            "completion_mask trains no token",
        ),
        (
            {"prompt_ids": [5], "completion_ids": [6], "completion_mask": [0, 1]},
            InvalidInputError,
            "completion_mask has 2 values for 1 tokens",
        ),
        ({"turns": []}, InvalidInputError, "turns is empty"),
        ({"turns": [{"prompt_ids": [1]}]}, InvalidInputError, "chat 0, turn 0 has no completion_token_ids"),
        (
            {"turns": [{"prompt_ids": [1], "completion_ids": [2], "weight": 0.5}]},
            UnsupportedError,
            r"chat 0, turn 0: weight is 0\.5",
        ),
    ],
)
def test_ids_that_do_not_fit_together_are_refused(row, error, message):
    with pytest.raises(error, match=message):
        from_chats([row])


def test_ids_beside_texts_are_taken():
    """Trainers log both."""
    rows = list(read([{"prompt": "hi", "completion": "yo", "prompt_ids": [5], "completion_ids": [6]}]))
    assert turns_of(from_chats(rows)) == [([5], [6], True)]


def test_a_file_with_ids_and_without():
    rows = [{"prompt_ids": [5], "completion_ids": [6]}, {"messages": []}]
    with pytest.raises(InvalidInputError, match="record 1 has no token ids; give input_ids"):
        list(read(rows))
