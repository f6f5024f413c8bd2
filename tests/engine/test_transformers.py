"""The transformers engine returns the log-probs of the model's own forward, whatever the batch."""

import numpy as np
import pytest
import torch

from agentrl_core import engine
from agentrl_core.engine import EntropyTemperature, Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

SAMPLINGS = [
    Sampling(max_tokens=12),
    Sampling(temperature=0.7, max_tokens=12),
    Sampling(temperature=0.7, top_k=7, max_tokens=12),
    Sampling(temperature=1.3, top_p=0.8, max_tokens=12),
    Sampling(temperature=0.9, top_p=0.9, top_k=20, max_tokens=12),
]


def ragged_requests(vocabulary, sampling, count=20, seed=0):
    """Prompts of one to thirty tokens, some of them repeated."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, vocabulary, random.integers(1, 31), dtype=np.int32) for _ in range(count // 2)]
    return [Request(prompts[i % len(prompts)], 1000 + i, sampling) for i in range(count)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_log_probs_and_entropies_match_a_forward_pass_of_the_model(family, sampling, make_model, tokenizer, own_words):
    model = make_model(family)
    generate = engine.Transformers(model, tokenizer)
    requests = ragged_requests(generate.vocabulary_size, sampling)
    segments = generate_all(generate, requests)
    assert [len(segment.tokens) for segment in segments] == [12] * len(requests)
    for request, segment in zip(requests, segments, strict=True):
        logprobs, entropies = own_words(model, request, segment, sampling)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(segment.entropies, entropies, atol=1e-5)


def test_the_temperature_of_each_token_follows_from_its_entropy(make_model, tokenizer):
    model = make_model("qwen3")
    generate = engine.Transformers(model, tokenizer)
    plain = Sampling(temperature=0.8, max_tokens=12)
    entropies = np.concatenate([one.entropies for one in generate_all(generate, ragged_requests(80, plain))])
    zero = float(np.quantile(np.log(entropies), 0.8, method="nearest"))
    rule = EntropyTemperature(zero, float(np.log(entropies).max()) - zero, zero - float(np.log(entropies).min()), 0.3)
    heights = []
    others = ragged_requests(80, plain, count=6, seed=1)  # rows beside them that follow no rule
    requests = ragged_requests(80, Sampling(temperature=0.8, max_tokens=12, by_entropy=rule))
    segments = generate_all(generate, [*requests, *others])
    for request, segment in zip(requests, segments, strict=False):
        ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.tokens) - 1 : -1].double()
        for z, token, logprob, reported in zip(
            logits, segment.tokens, segment.logprobs, segment.entropies, strict=True
        ):
            p = torch.softmax(z / 0.8, -1)
            entropy = float(-(p * p.log()).sum())
            assert reported == pytest.approx(entropy, abs=1e-5)
            e = np.log(max(entropy, 1e-8))
            h = min((e - zero) / rule.above, 1.0) if e > zero else max((e - zero) / rule.below, -1.0)
            heights.append(h)
            expected = torch.log_softmax(z / (0.8 * (1 + 0.3 * h)), -1)[token]
            assert logprob == pytest.approx(float(expected), abs=1e-5)
    assert min(heights) < -0.5, "sure"
    assert max(heights) > 0.1, "and unsure"
    alone = generate_all(generate, others)
    assert [one.tokens.tolist() for one in segments[len(requests) :]] == [one.tokens.tolist() for one in alone]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_segment_does_not_depend_on_its_batch(family, make_model, tokenizer):
    generate = engine.Transformers(make_model(family), tokenizer)
    # Stop tokens end rows at different steps, so rows are dropped from the cache on the way.
    sampling = Sampling(max_tokens=50, stop_token_ids=tuple(range(0, generate.vocabulary_size, 12)))
    requests = ragged_requests(generate.vocabulary_size, sampling, count=24)
    together = generate_all(generate, requests)
    assert len({len(segment.tokens) for segment in together}) > 5
    backwards = generate_all(generate, requests[::-1])[::-1]
    alone = [generate_all(generate, [request])[0] for request in requests]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert one.tokens.tolist() == two.tokens.tolist() == three.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-5)
        np.testing.assert_allclose(one.logprobs, three.logprobs, atol=1e-5)


def test_long_segments_outgrow_the_first_room_of_the_cache(make_model, tokenizer, own_words):
    # Longer than the initial capacity of the cache, so that it has to grow.
    model = make_model("qwen3")
    generate = engine.Transformers(model, tokenizer)
    sampling = Sampling(max_tokens=100)
    requests = ragged_requests(generate.vocabulary_size, sampling, count=4)
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        assert len(segment.tokens) == 100
        np.testing.assert_allclose(segment.logprobs, own_words(model, request, segment, sampling)[0], atol=1e-5)


def test_segments_end_after_a_stop_token_or_at_the_limit(make_model, tokenizer):
    generate = engine.Transformers(make_model("llama"), tokenizer)
    stops = tuple(range(0, generate.vocabulary_size, 5))
    requests = [
        Request(request.tokens, request.seed, Sampling(max_tokens=3 + i % 4, stop_token_ids=stops))
        for i, request in enumerate(ragged_requests(generate.vocabulary_size, Sampling(), count=40))
    ]
    reasons = set()
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        reasons.add(segment.finish_reason)
        assert not set(segment.tokens[:-1].tolist()) & set(stops)
        assert (segment.finish_reason == "stop") == (int(segment.tokens[-1]) in stops)
        assert len(segment.tokens) <= request.sampling.max_tokens
        if segment.finish_reason == "length":
            assert len(segment.tokens) == request.sampling.max_tokens
        assert len(segment.tokens) == len(segment.logprobs) == len(segment.entropies)
        assert segment.seed == request.seed
        assert (segment.tokens.dtype, segment.logprobs.dtype) == (np.int32, np.float32)
    assert reasons == {"stop", "length"}


def test_temperature_zero_takes_the_most_likely_token(make_model, tokenizer):
    model = make_model("qwen3")
    generate = engine.Transformers(model, tokenizer)
    request = Request(np.array([5, 6, 7], np.int32), 1, Sampling(temperature=0.0, max_tokens=6))
    [segment] = generate_all(generate, [request])
    ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
    with torch.no_grad():
        best = model(ids).logits[0, 2:-1].argmax(-1)
    assert segment.tokens.tolist() == best.tolist()
    assert not segment.logprobs.any()
    assert not segment.entropies.any()


def test_the_models_mode_and_gradients_are_left_as_they_were(make_model, tokenizer):
    model = make_model("qwen3", attention_dropout=0.5)
    model.train()
    model.model.layers[0].eval()
    generate = engine.Transformers(model, tokenizer)
    request = Request(np.arange(5, dtype=np.int32), 1, Sampling(max_tokens=8))
    first, second = (generate_all(generate, [request])[0] for _ in range(2))
    assert first.logprobs.tolist() == second.logprobs.tolist(), "dropout is off while generating"
    assert model.training
    assert not model.model.layers[0].training
    assert model.model.layers[1].training
    model(torch.arange(5)[None]).logits.sum().backward()
    assert model.lm_head.weight.grad is not None


def test_weights_follow_the_policy_and_are_copied_from_another_model(make_model, tokenizer, own_words):
    policy, other = make_model("qwen3"), make_model("qwen3", seed=1)
    generate = engine.Transformers(policy, tokenizer)
    sampling = Sampling(max_tokens=8)
    request = Request(np.arange(5, dtype=np.int32), 1, sampling)
    with torch.no_grad():
        policy.lm_head.weight.mul_(0.5)
    generate.update_weights(policy, version=7)
    [segment] = generate_all(generate, [request])
    assert segment.policy_version == generate.policy_version == 7
    np.testing.assert_allclose(segment.logprobs, own_words(policy, request, segment, sampling)[0], atol=1e-5)
    generate.update_weights(other, version=8)
    [segment] = generate_all(generate, [request])
    assert segment.policy_version == 8
    np.testing.assert_allclose(segment.logprobs, own_words(other, request, segment, sampling)[0], atol=1e-5)
    with pytest.raises(InvalidInputError, match="does not fit"):
        generate.update_weights(make_model("llama"), version=9)


def test_no_requests_give_no_segments(make_model, tokenizer):
    assert generate_all(engine.Transformers(make_model("llama"), tokenizer), []) == []


def test_the_tokenizer_is_found_beside_the_model(make_model, tokenizer, tmp_path):
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert engine.Transformers(loaded).chat.prompt("1 + 1 =").tolist() == (
        engine.Transformers(model, tokenizer).chat.prompt("1 + 1 =").tolist()
    )


def test_wrong_calls(make_model, tokenizer, tmp_path):
    model = make_model("llama")
    model.config._name_or_path = model.name_or_path = str(tmp_path)
    with pytest.raises(InvalidInputError, match="no tokenizer is given"):
        engine.Transformers(model)
    generate = engine.Transformers(model, tokenizer)
    for token in (-1, generate.vocabulary_size):
        with pytest.raises(InvalidInputError, match=f"holds token {token}"):
            generate_all(generate, [Request(np.array([1, token], np.int32), 0, Sampling())])
    with pytest.raises(InvalidInputError, match="the request is a str"):
        generate_all(generate, ["2 + 2 ="])
    with pytest.raises(InvalidInputError, match="top is 100000, but the vocabulary"):
        generate_all(generate, [Request(np.array([1], np.int32), 0, Sampling(top=100_000))])


@pytest.mark.parametrize("family", ["mistral, window", "qwen2, window", "gemma2, window", "gemma3, window"])
def test_sliding_window_layers_match_a_forward_pass_of_the_model(family, make_model, tokenizer, own_words):
    options = {"attn_implementation": "eager"} if "gemma2" in family else {}  # its scores are capped
    model = make_model(family, **options)
    generate = engine.Transformers(model, tokenizer)
    sampling = Sampling(max_tokens=12)
    random = np.random.default_rng(0)
    begin = random.integers(0, generate.vocabulary_size, 80, dtype=np.int32)  # shared, and longer than the window of 4
    first = [Request(np.append(begin[: 80 - seed % 2], seed).astype(np.int32), seed, sampling) for seed in range(6)]
    first += ragged_requests(generate.vocabulary_size, sampling)
    segments = generate_all(generate, first)
    turns = [
        np.concatenate([turn.tokens, reply.tokens, begin[:5]]) for turn, reply in zip(first, segments, strict=True)
    ]
    later = [Request(tokens, 50 + place, sampling) for place, tokens in enumerate(turns)]
    assert all(reply.cached_tokens > 0 for reply in generate_all(generate, later)), "continued from the cache"
    for request, segment in zip(first + later, segments + generate_all(generate, later), strict=True):
        np.testing.assert_allclose(segment.logprobs, own_words(model, request, segment, sampling)[0], atol=1e-5)


def test_models_that_would_be_wrong_are_refused(make_model, tokenizer):
    linear = make_model("qwen3")
    linear.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UnsupportedError, match=r"neither full_attention .*linear_attention"):
        engine.Transformers(linear, tokenizer)
    flexible = make_model("llama", attn_implementation="flex_attention")
    with pytest.raises(UnsupportedError, match="flex_attention"):
        engine.Transformers(flexible, tokenizer)
    capped = make_model("gemma2", attn_logit_softcapping=30.0)
    capped.config._attn_implementation = "sdpa"  # the default of transformers 5.19; 5.24 has "eager" alone
    with pytest.raises(UnsupportedError, match="attn_logit_softcapping is 30"):
        engine.Transformers(capped, tokenizer)
