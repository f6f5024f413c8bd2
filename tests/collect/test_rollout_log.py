"""A new process reads exactly the data that was written for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gallery import picture
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.collect.rollout_driver import question
from agentrl_core.collect.rollout_log import (
    IterationLog,
    digest,
    plain_value,
    read_answer,
    read_begin,
    read_segment,
    write_answer,
    write_begin,
    write_segment,
)
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import TopLogprobs
from agentrl_core.env import Context, StepResult
from agentrl_core.env.step_record import StepRecord
from agentrl_core.exceptions import InvalidInputError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    numbers=st.lists(st.tuples(st.integers(0, 2**31 - 1), FLOATS, FLOATS), max_size=9),
    likely=st.integers(0, 3),
    entropies=st.booleans(),
    version=st.integers(-1, 2**40),
    seed=st.integers(0, 2**63 - 1),
)
def test_segments(
    numbers: list[tuple[int, float, float]], likely: int, entropies: bool, version: int, seed: int
) -> None:
    count = len(numbers)
    tokens = np.array([token for token, _, _ in numbers], np.int32)
    logprobs, other = (np.array([row[place] for row in numbers], np.float32) for place in (1, 2))
    top = TopLogprobs(
        np.arange(count * likely, dtype=np.int32).reshape(count, likely), np.ones((count, likely), np.float32)
    )
    segment = Segment(
        tokens,
        logprobs,
        other if entropies else None,
        "length" if count else "abort",
        version,
        seed,
        top if likely else None,
    )
    back = read_segment(write_segment(segment))
    assert (back.finish_reason, back.policy_version, back.seed) == (segment.finish_reason, version, seed)
    for name in ("tokens", "logprobs", "entropies"):
        one, same = getattr(segment, name), getattr(back, name)
        assert (one is None and same is None) or (one.dtype == same.dtype and one.tolist() == same.tolist())
    assert (back.top is None) == (not likely)
    if back.top is not None:
        assert back.top.tokens.tolist() == top.tokens.tolist()
        assert back.top.logprobs.tolist() == top.logprobs.tolist()


ANSWERS = [
    StepRecord(StepResult("go on", reward=0.1, flags=5, info={"a": [1, None]}), b"\x00\xff"),
    StepRecord(StepResult([{"role": "tool", "content": "3"}], reward=None), "a state"),
    StepRecord(StepResult(reward=math.nan, terminated=True, success=False), None),
    StepRecord(StepResult(truncated=True, facts={"n": math.inf, "k": "x", "b": b"\x01"}), None),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers(answer: StepRecord) -> None:
    back = read_answer(write_answer(answer))
    assert repr(back) == repr(answer)
    assert type(back.state_key) is type(answer.state_key)


def test_numbers_of_numpy_are_plain() -> None:
    back = read_answer(write_answer(StepRecord(StepResult("x", info={"n": np.float32(0.5), "i": np.int64(3)}), b"")))
    assert back.outcome.info == {"n": 0.5, "i": 3}
    with pytest.raises(InvalidInputError, match="StepResult cannot be saved as JSON"):
        write_answer(StepRecord(StepResult("x", info={"n": object()}), b""))


def test_beginnings() -> None:
    beside = Context(1, replaces_history=True, max_tokens=8, observation="and?", state_key=b"other")
    begin = ([{"role": "user", "content": "?"}], b"state", [{"type": "function"}], (Context(), beside))
    assert read_begin(write_begin(begin)) == begin


def test_a_recorded_response_is_reused_only_for_an_equal_request() -> None:
    kept: list[tuple[bytes, bytes]] = []

    class File:
        def append(self, name: bytes, payload: bytes) -> None:
            kept.append((name, payload))

        def records(self) -> list[tuple[bytes, bytes]]:
            return kept

    request = Request(np.array([1, 2], np.int32), 7, Sampling())
    others = [
        Request(np.array([1, 3], np.int32), 7, Sampling()),
        Request(np.array([1, 2], np.int32), 7, Sampling(temperature=0.5)),
    ]
    segment = Segment(np.array([5], np.int32), np.array([-1.0], np.float32), None, "stop", 3, 7)
    log = IterationLog(File())
    log.keep("a/segment0", question(request, "policy"), segment, write_segment)
    assert log.unused == []
    later = IterationLog(File())
    assert later.unused == ["a/segment0"]
    for again in (log, later):
        assert "a/segment0" in again
        found_segment = again.find("a/segment0", question(request, "policy"), read_segment)
        assert found_segment is not None
        assert found_segment.tokens.tolist() == [5]
        assert again.unused == []
        for other in others:
            assert again.find("a/segment0", question(other, "policy"), read_segment) is None
        assert again.find("a/segment0", question(request, "critic"), read_segment) is None
        again.begin()
        assert len(again) == len(again.unused) == 1


def test_digests_equal_xxh3_of_length_prefixed_parts() -> None:
    """Format of rollout logs, checked against another library's XXH3 of bytes assembled here."""
    xxhash = pytest.importorskip("xxhash")

    def framed(*parts: bytes) -> bytes:
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    assert digest("täsk", b"\0", "7") == xxhash.xxh3_128_digest(framed("täsk".encode(), b"\0", b"7"))
    tokens, image, sampling = np.arange(-2, 1000, dtype=np.int32), picture(1), Sampling(max_tokens=4)
    parts = tokens.tobytes(), repr(sampling).encode(), b"policy", image.sha256
    question_digest = question(Request(tokens, 0, sampling, "a group", (image,)), "policy")
    assert question_digest == xxhash.xxh3_128_digest(framed(*parts))


def test_an_effect_is_returned_in_the_form_in_which_it_is_stored() -> None:
    assert plain_value((1, {"a": 2.5}), "judge") == [1, {"a": 2.5}]
    with pytest.raises(InvalidInputError, match=r"judge returned .*, which cannot be stored"):
        plain_value({1, 2}, "judge")
