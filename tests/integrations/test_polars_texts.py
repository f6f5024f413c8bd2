"""Compare texts and chats of a run in Polars with its tokenizer."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import scan
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.polars.vocabulary import Vocabulary


def test_texts_are_those_of_the_tokenizer(recorded) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(recorded / "start" / "tokenizer.json"))
    run = scan(recorded)
    eager = run.trajectories.collect().agentrl.paths(run).agentrl.text(recorded)
    lazy = run.trajectories.agentrl.paths(run).agentrl.text(tokenizer).collect()
    assert eager["text"].to_list() == lazy["text"].to_list()
    decoded = tokenizer.decode_batch(eager["tokens"].to_list(), skip_special_tokens=False)
    assert eager["text"].to_list() == decoded
    assert len(decoded) > 50
    with pytest.raises(InvalidInputError, match="there is no"):
        eager.agentrl.text(recorded / "nodes")
    with pytest.raises(InvalidInputError, match="already has a column text"):
        eager.agentrl.text(recorded)


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=40), more=st.lists(st.text(max_size=12), max_size=4))
def test_any_text_round_trips_exactly(text: str, more: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["some text that is somewhat some"], trainer)
    texts = [text, *more]
    tokens = pl.Series([tokenizer.encode(each).ids for each in texts], dtype=pl.List(pl.Int32))
    assert Vocabulary.of(tokenizer).texts(tokens).to_list() == texts


def test_chats_are_the_messages_of_a_rollout(recorded) -> None:
    run = scan(recorded)
    rows = run.trajectories.agentrl.chats(run, recorded).collect()
    first = rows["messages"][0].to_list()
    assert [message["role"] for message in first] == ["user", "assistant", "tool", "assistant"]
    assert not any("<assistant>" in message["content"] for message in first)
    texts = run.trajectories.agentrl.paths(run).agentrl.text(recorded).collect()["text"]
    special = re.compile("<(?:user|assistant|end|call|/call|answer|/answer|result|/result)>")
    joined = ["".join(message["content"] for message in messages) for messages in rows["messages"].to_list()]
    assert [special.sub("", text) for text in joined] == [special.sub("", text) for text in texts]
    assert rows.columns == [*run.trajectories.collect_schema().names(), "messages"]
    assert run.trajectories.clear().agentrl.chats(run, recorded).collect().schema["messages"] == rows.schema["messages"]
