"""The remembered state of a growing chat equals a newly computed one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.agents.history_digest import HistoryDigests, digests
from agentrl_core.agents.records import SessionRecord, SessionTurn

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = st.sampled_from(
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": " b\n"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": "b"}, CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "c"},
    ]
)


@given(st.lists(st.tuples(st.lists(MESSAGES, min_size=1, max_size=6), st.sampled_from(["", "tools"])), max_size=8))
def test_incremental_digests_of_a_growing_chat_equal_full_digests(chats) -> None:
    histories = HistoryDigests()
    for messages, context in chats:
        expected = digests(messages, context)
        assert histories.digests(messages, context) == expected
        for count in range(len(messages)):
            assert digests(messages, context, expected[:count]) == expected


def turn(number, origin, shared, added, output):
    logprobs = np.zeros(len(output), np.float32)
    return SessionTurn(number, origin, shared, added, output, logprobs, "stop", 0, None, 1.0, {}, "", "")


@given(st.data())
def test_the_tokens_of_a_turn_are_the_same_in_any_order_of_asking(data) -> None:
    recorded, paths = SessionRecord("s", "t", "g", 0), []
    tokens = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda values: np.array(values, np.int32))
    for number in range(data.draw(st.integers(1, 8))):
        origin = data.draw(st.integers(-1, number - 1))
        shared = data.draw(st.integers(0, len(paths[origin]))) if origin >= 0 else 0
        added, output = data.draw(tokens), data.draw(tokens)
        recorded.turns.append(turn(number, origin, shared, added, output))
        before = paths[origin][:shared] if origin >= 0 else np.empty(0, np.int32)
        paths.append(np.concatenate([before, added, output]))
        for index in data.draw(st.lists(st.integers(0, number), max_size=4)):
            assert recorded.path(index).tolist() == paths[index].tolist()
            assert recorded.context(index).tolist() == paths[index][: -len(recorded.turns[index].output)].tolist()
