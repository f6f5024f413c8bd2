"""The scripted engine generates exactly its script."""

import asyncio

import numpy as np
import pytest

from agentrl_core.engine import Request, Sampling, Scripted
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.exceptions import InvalidInputError


def requests(*prompts, sampling=None):
    return [Request(np.array(prompt, np.int32), i, sampling or Sampling()) for i, prompt in enumerate(prompts)]


def test_a_list_is_used_up_in_order(tokenizer):
    generate = Scripted(tokenizer, ["<answer>1</answer>", "<answer>2</answer>"])
    stops = Sampling(stop_token_ids=generate.chat.stop_token_ids)
    segments = generate_all(generate, requests([1], [2], sampling=stops))
    assert [generate.chat.decode(segment.tokens) for segment in segments] == [
        "<answer>1</answer>",
        "<answer>2</answer>",
    ]
    assert [segment.finish_reason for segment in segments] == ["stop", "stop"]
    assert [segment.seed for segment in segments] == [0, 1]
    with pytest.raises(InvalidInputError, match="used up"):
        generate_all(generate, requests([1], sampling=stops))


def test_a_scripted_function_receives_the_tokens(tokenizer):
    generate = Scripted(
        tokenizer, lambda tokens: ScriptedReply([int(tokens[-1]), 9], logprobs=[-0.5, -1.5], entropies=[0.25, 2.0])
    )
    generate.update_weights(None, version=4)
    [segment] = generate_all(generate, requests([3, 8]))
    assert segment.tokens.tolist() == [8, 9]
    assert segment.logprobs.tolist() == [-0.5, -1.5]
    assert segment.entropies.tolist() == [0.25, 2.0]
    assert (segment.finish_reason, segment.policy_version) == ("length", 4)


def test_replies_are_cut_as_a_real_engine_would(tokenizer):
    reply = ScriptedReply([5, 6, 7, 8], logprobs=[-1.0, -2.0, -3.0, -4.0])
    [stopped] = generate_all(Scripted(tokenizer, [reply]), requests([1], sampling=Sampling(stop_token_ids=(6, 8))))
    assert (stopped.tokens.tolist(), stopped.finish_reason) == ([5, 6], "stop")
    assert stopped.logprobs.tolist() == [-1.0, -2.0]
    [limited] = generate_all(Scripted(tokenizer, [reply]), requests([1], sampling=Sampling(max_tokens=3)))
    assert (limited.tokens.tolist(), limited.finish_reason) == ([5, 6, 7], "length")


def test_a_scripted_function_receives_the_whole_request(tokenizer):
    generate = Scripted(tokenizer, lambda request: ScriptedReply([request.seed + 1, request.sampling.max_tokens]))
    segments = generate_all(generate, requests([3, 8], [4], sampling=Sampling(max_tokens=5)))
    assert [segment.tokens.tolist() for segment in segments] == [[1, 5], [2, 5]]


def test_delays_make_any_order_of_completion(tokenizer):
    generate = Scripted(tokenizer, ["a", "b", "c"], delay=lambda request: [0.03, 0.0, 0.01][request.seed])
    order = []

    async def one(request):
        segment = await generate.generate(request)
        order.append(request.seed)
        return generate.chat.decode(segment.tokens)

    async def all_of_them():
        return await asyncio.gather(*map(one, requests([1], [1], [1])))

    assert asyncio.run(all_of_them()) == ["a", "b", "c"], "the list is used up in the order of the requests"
    assert order == [1, 2, 0]


@pytest.mark.parametrize("how", ["abort", "update_weights", "close"])
def test_a_delayed_reply_is_ended_by_an_abort_new_weights_and_the_close(tokenizer, how):
    generate = Scripted(tokenizer, lambda _: ScriptedReply([4]), delay=1000.0)
    first, second = requests([1], [1], sampling=Sampling(top=2))

    async def end():
        tasks = [asyncio.create_task(generate.generate(request)) for request in (first, second)]
        await asyncio.sleep(0)
        if how == "abort":
            await asyncio.to_thread(generate.abort, first)
            await tasks[0]
            generate.abort(second)
        elif how == "close":
            generate.close()
        else:
            await asyncio.to_thread(generate.update_weights, None, 3)
        return await asyncio.gather(*tasks)

    for segment in asyncio.run(end()):
        assert (segment.finish_reason, segment.policy_version, len(segment.tokens)) == ("abort", 0, 0)
        assert segment.top.tokens.shape == (0, 2)
    assert not generate._delayed
    if how == "close":
        with pytest.raises(InvalidInputError, match="this Scripted engine is closed"):
            generate_all(generate, [first])


def test_a_waiter_that_is_cancelled_is_cancelled(tokenizer):
    generate = Scripted(tokenizer, lambda _: ScriptedReply([4]), delay=1000.0)

    async def cancel():
        task = asyncio.create_task(generate.generate(*requests([1])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not generate._delayed


def test_wrong_scripts(tokenizer):
    with pytest.raises(InvalidInputError, match="give a list"):
        Scripted(tokenizer, "<answer>1</answer>")
    with pytest.raises(InvalidInputError, match="no tokens"):
        generate_all(Scripted(tokenizer, [ScriptedReply([])]), requests([1]))
    with pytest.raises(InvalidInputError, match=r"logprobs of a reply is \[0.0\], 1 numbers for 2 tokens"):
        generate_all(Scripted(tokenizer, [ScriptedReply([1, 2], logprobs=[0.0])]), requests([1]))
