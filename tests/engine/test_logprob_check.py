"""Each reason for a difference between engine and policy log-probabilities is identified by its name."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.logprob_check import check_logprobs, sample_requests

WARM = Sampling(temperature=0.7, max_tokens=12)


def check_result(generate, model, sampling=WARM, **options):
    return check_logprobs(generate, model, sample_requests(generate.vocabulary_size, sampling), **options)


class Altered(engine.Transformers):
    """Changes a request, or its result, like a misconfigured engine."""

    def __init__(self, *arguments, before=lambda request: request, after=lambda _, segment: segment):
        super().__init__(*arguments)
        self.before, self.after = before, after

    async def generate(self, request):
        return self.after(request, await super().generate(self.before(request)))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_tokens=12), WARM, replace(WARM, top_k=9), Sampling(temperature=1.3, top_p=0.8, max_tokens=12)],
    ids=str,
)
def test_an_engine_that_is_right_is_found_right(sampling, make_model, tokenizer):
    model = make_model("qwen3")
    finding = check_result(engine.Transformers(model, tokenizer), model, sampling, version=0)
    assert (finding.cause, finding.message) == ("none", "engine and model agree")
    assert finding.tokens == 2 * 14 * 12, "fourteen requests and a turn behind each"
    assert 0 < finding.largest < 1e-4
    assert finding.mean <= finding.largest
    # Second turns have their whole previous context cached: prompt + 12 - 1. Of the first turns, the copy's prompt but
    # one.
    prompts = sum((1, 3, 9, 17, 33, 40))
    assert finding.cached_tokens >= 2 * (prompts + 6 * 11) + prompts - 6
    assert sampling == finding.sampling


@pytest.mark.parametrize("room", [512, 100])
def test_short_prompts_have_a_turn_that_reads_whole_blocks_if_the_context_has_room(room, make_model, tokenizer):
    model = make_model("qwen3", max_position_embeddings=room)
    generate = engine.Transformers(model, tokenizer)
    requests = [Request(np.arange(3, 3 + count, dtype=np.int32), count, Sampling(max_tokens=8)) for count in (5, 9)]
    finding = check_logprobs(generate, model, requests)
    assert finding.cause == "none"
    assert finding.tokens == 5 * 8, "two turns of each, and a third one"
    turn = min(280, room - 2 * 8 - 3)
    assert finding.cached_tokens == (5 + 8 - 1) + (9 + 8 - 1) + (turn + 8 - 1)


def test_weights_of_another_version_and_unsaid_ones(make_model, tokenizer):
    model, other = make_model("qwen3"), make_model("qwen3", seed=1)
    generate = engine.Transformers(other, tokenizer)
    finding = check_result(generate, model, version=0)
    assert finding.cause == "weights"
    assert "reports version 0" in finding.message
    assert finding.largest > 0.1
    generate.update_weights(other, 3)
    finding = check_result(generate, model, version=0)
    assert finding.cause == "version"
    assert "weights of version 3, and the model's are of version 0" in finding.message
    assert check_result(generate, other, version=3).cause == "none"
    assert check_result(generate, model).cause == "weights"


def test_log_probs_before_temperature(make_model, tokenizer, own_words):
    model = make_model("qwen3")

    def raw(request, segment):
        logprobs = own_words(model, request, segment, Sampling())[0]
        return replace(segment, logprobs=logprobs.astype(np.float32))

    generate = Altered(model, tokenizer, after=raw)
    for sampling in (WARM, Sampling(top_k=5, max_tokens=12)):
        finding = check_result(generate, model, sampling)
        assert finding.cause == "mode"
        assert "logprobs_mode=processed_logprobs" in finding.message
    assert check_result(generate, model, Sampling(max_tokens=12)).cause == "none", "at temperature 1 both modes are one"


@pytest.mark.parametrize("temperature", [0.35, 1.3])
def test_a_temperature_other_than_the_requested_one_is_identified(temperature, make_model, tokenizer):
    model = make_model("qwen3")

    def clamped(request):
        return Request(request.tokens, request.seed, replace(request.sampling, temperature=temperature))

    finding = check_result(Altered(model, tokenizer, before=clamped), model, replace(WARM, top_k=8))
    assert finding.cause == "temperature"
    assert f"samples at temperature {temperature:g}, not 0.7" in finding.message


def test_a_window_that_one_side_has(make_model, tokenizer):
    model = make_model("qwen3")
    window = make_model("qwen3", use_sliding_window=True, sliding_window=20, max_window_layers=0)
    window.load_state_dict(model.state_dict())
    finding = check_result(engine.Transformers(model, tokenizer), window)
    assert finding.cause == "position"
    # Position 20 is the first that does not see position 0; the token after it is the first with other probabilities.
    assert "tokens before position 21 agree" in finding.message
    assert finding.position >= 21


def test_another_precision(make_model, tokenizer):
    model = make_model("qwen3", initializer_range=0.05)
    finding = check_result(engine.Transformers(model, tokenizer), copy.deepcopy(model).to(torch.bfloat16))
    assert finding.cause == "precision"
    assert 1e-3 < finding.largest < 0.5
    assert check_result(engine.Transformers(model, tokenizer), model.double(), tolerance=1e-3).cause == "none"


def test_where_the_largest_difference_is(make_model, tokenizer):
    model = make_model("qwen3")

    def wrong_once(request, segment):
        if len(request.tokens) != 33 or request.seed % 2:
            return segment
        logprobs = segment.logprobs.copy()
        logprobs[5] -= 7
        return replace(segment, logprobs=logprobs)

    finding = check_result(Altered(model, tokenizer, after=wrong_once), model)
    assert (finding.cause, finding.request, finding.position) == ("position", 8, 38)
    np.testing.assert_allclose(finding.largest, 7, atol=1e-3)
    np.testing.assert_allclose(finding.mean, 7 / finding.tokens, atol=1e-3)
