"""The scripted engine says exactly what it is told to."""

import numpy as np
import pytest

from agentrl_core.engine import Reply, Request, Sampling, Scripted, complete
from agentrl_core.exceptions import InvalidInputError


def requests(*prompts, sampling=None):
    return [Request(np.array(prompt, np.int32), i, sampling or Sampling()) for i, prompt in enumerate(prompts)]


def test_a_list_is_used_up_in_order(tokenizer):
    says = Scripted(tokenizer, ["<answer>1</answer>", "<answer>2</answer>"])
    stops = Sampling(stop_token_ids=says.chat.stop_token_ids)
    segments = complete(says, requests([1], [2], sampling=stops))
    assert [says.chat.decode(segment.tokens) for segment in segments] == ["<answer>1</answer>", "<answer>2</answer>"]
    assert [segment.finish_reason for segment in segments] == ["stop", "stop"]
    assert [segment.seed for segment in segments] == [0, 1]
    with pytest.raises(InvalidInputError, match="used up"):
        complete(says, requests([1], sampling=stops))


def test_a_function_sees_the_tokens(tokenizer):
    says = Scripted(tokenizer, lambda tokens: Reply([int(tokens[-1]), 9], logprobs=[-0.5, -1.5], entropies=[0.25, 2.0]))
    says.update_weights(None, version=4)
    [segment] = complete(says, requests([3, 8]))
    assert segment.tokens.tolist() == [8, 9]
    assert segment.logprobs.tolist() == [-0.5, -1.5]
    assert segment.entropies.tolist() == [0.25, 2.0]
    assert (segment.finish_reason, segment.policy_version) == ("length", 4)


def test_replies_are_cut_as_a_real_engine_would(tokenizer):
    reply = Reply([5, 6, 7, 8], logprobs=[-1.0, -2.0, -3.0, -4.0])
    [stopped] = complete(Scripted(tokenizer, [reply]), requests([1], sampling=Sampling(stop_token_ids=(6, 8))))
    assert (stopped.tokens.tolist(), stopped.finish_reason) == ([5, 6], "stop")
    assert stopped.logprobs.tolist() == [-1.0, -2.0]
    [limited] = complete(Scripted(tokenizer, [reply]), requests([1], sampling=Sampling(max_tokens=3)))
    assert (limited.tokens.tolist(), limited.finish_reason) == ([5, 6, 7], "length")


def test_wrong_scripts(tokenizer):
    with pytest.raises(InvalidInputError, match="give a list"):
        Scripted(tokenizer, "<answer>1</answer>")
    with pytest.raises(InvalidInputError, match="no tokens"):
        complete(Scripted(tokenizer, [Reply([])]), requests([1]))
    with pytest.raises(InvalidInputError, match="2 tokens has 1 logprobs"):
        complete(Scripted(tokenizer, [Reply([1, 2], logprobs=[0.0])]), requests([1]))
