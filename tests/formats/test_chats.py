"""Chats with unusual texts and keys."""

import pytest
from chat_templates import QUESTION, WITH_CALLS, answer, byte_tokenizer, turn_texts

from agentrl_core.integrations.trajectories import from_chats, to_chats


def test_answer_may_begin_with_a_newline():
    tokenizer = byte_tokenizer(WITH_CALLS, merges=[("Ċ", "Ċ")])
    batch = from_chats([{"messages": [QUESTION, answer("\n\nCold.")]}], tokenizer)
    assert turn_texts(batch, tokenizer) == ["\n\nCold.<|im_end|>"]


@pytest.mark.parametrize("key", ["trial", "is_demo", "notes"])
def test_keys_of_a_chat_come_back_with_any_value(key):
    """tau-bench numbers its trials from 0."""
    chat = {
        "messages": [QUESTION, answer("Cold.")],
        "task": "oslo",
        "trial": 0,
        "is_demo": False,
        "notes": "",
        "seen": 1,
    }
    [back] = to_chats(from_chats([chat], byte_tokenizer(WITH_CALLS)))
    assert {name: back[name] for name in ("messages", "task", "seen")} == {
        name: chat[name] for name in ("messages", "task", "seen")
    }
    assert back.get(key, "lost") == chat[key]


@pytest.mark.parametrize(("key", "value"), [("task", ""), ("group", " "), ("task", "\n")])
def test_chats_without_a_name_do_not_share_a_group(key, value):
    chats = [{"messages": [QUESTION, answer("Cold.")], key: value, "reward": reward} for reward in (0.0, 1.0)]
    batch = from_chats(chats, byte_tokenizer(WITH_CALLS))
    assert batch.num_groups == 2
    assert batch.texts("task_id", "draw") == ["0", "1"]
    assert list(to_chats(batch)) == chats
