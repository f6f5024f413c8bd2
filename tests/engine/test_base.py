"""Wrong requests and segments of engines are reported at once; `complete` works in every context."""

import asyncio

import numpy as np
import pytest

from agentrl_core.engine import Request, Sampling, Scripted, Segment, Transformers, complete
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.exceptions import InvalidInputError

TOKENS = np.array([1, 2], np.int32)
NUMBERS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_tokens": 0}, {"top": -1}], ids=str
)
def test_samplings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidInputError, match=f"Sampling: {next(iter(wrong))} is"):
        Sampling(**wrong)


@pytest.mark.parametrize(
    ("tokens", "seed", "sampling", "message"),
    [
        ([1, 2], 0, Sampling(), "tokens is a list"),
        (TOKENS[:0], 0, Sampling(), "at least one token"),
        (TOKENS.astype(float), 0, Sampling(), "float64"),
        (TOKENS, -1, Sampling(), "seed is -1"),
        (TOKENS, "7", Sampling(), "seed is '7'"),
        (TOKENS, 0, {"temperature": 1}, "sampling is {'temperature': 1}"),
    ],
)
def test_requests_that_are_none_are_refused(tokens, seed, sampling, message):
    with pytest.raises(InvalidInputError, match=message):
        Request(tokens, seed, sampling)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "entropies", "reason", "message"),
    [
        (TOKENS, None, None, "stop", "logprobs is None"),
        (TOKENS, NUMBERS[:1], None, "stop", "1 logprobs of 2 tokens"),
        (TOKENS, NUMBERS, NUMBERS[:0], "stop", "0 entropies of 2 tokens"),
        (TOKENS, NUMBERS, None, "end", "finish_reason is 'end'"),
        (TOKENS[:0], NUMBERS[:0], None, "length", "give at least one token, or finish_reason='abort'"),
    ],
)
def test_incomplete_or_invalid_segments_are_refused(tokens, logprobs, entropies, reason, message):
    with pytest.raises(InvalidInputError, match=message):
        Segment(tokens, logprobs, entropies, reason, 0, 0)
    assert len(Segment(TOKENS[:0], NUMBERS[:0], None, "abort", 0, 0).tokens) == 0


def test_equal_samplings_are_one_key_however_the_stops_are_given():
    assert {Sampling(stop_token_ids=[1, 2]), Sampling(stop_token_ids=(1, 2))} == {Sampling(stop_token_ids=(1, 2))}


def test_complete_ends_with_the_turn_and_generate_where_the_sampling_does(tokenizer):
    other = 8
    generate = Scripted(tokenizer, lambda _: ScriptedReply([3, generate.chat.end_of_turn, other, 4]))
    end = generate.chat.end_of_turn
    assert end in generate.chat.stop_token_ids
    [segment] = complete(generate, [Request(TOKENS, 0, Sampling(max_tokens=9))])
    assert (segment.tokens.tolist(), segment.finish_reason) == ([3, end], "stop")
    [segment] = complete(generate, [Request(TOKENS, 0, Sampling(max_tokens=9, stop_token_ids=(3,)))])
    assert segment.tokens.tolist() == [3]
    [segment] = generate_all(generate, [Request(TOKENS, 0, Sampling(max_tokens=3))])
    assert (segment.tokens.tolist(), segment.finish_reason) == ([3, end, other], "length")
    with pytest.raises(InvalidInputError, match="the request is a dict"):
        complete(generate, [{"tokens": TOKENS}])


@pytest.mark.parametrize("kind", [Scripted, Transformers])
def test_complete_works_inside_a_loop_that_runs(kind, make_model, tokenizer):
    generate = (
        Scripted(tokenizer, lambda _: ScriptedReply([4]))
        if kind is Scripted
        else Transformers(make_model("llama"), tokenizer)
    )
    requests = [Request(TOKENS, seed, Sampling(max_tokens=3)) for seed in range(4)]

    async def notebook():
        return complete(generate, requests)

    inside, outside = asyncio.run(notebook()), complete(generate, requests)
    assert [segment.tokens.tolist() for segment in inside] == [segment.tokens.tolist() for segment in outside]
    assert [segment.seed for segment in inside] == [0, 1, 2, 3]

    async def wrong():
        return complete(generate, [requests[0], Request(np.array([-1]), 0, Sampling())])

    with pytest.raises(InvalidInputError, match="holds token -1"):
        asyncio.run(wrong())
