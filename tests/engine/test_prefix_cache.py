"""Cached prefixes serve the next turn and forks, and reduce only the work."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.prefix_cache import LEAST_SAVED, PrefixCache, shared_prefixes
from agentrl_core.exceptions import InvalidInputError

TOKENS = st.lists(st.integers(0, 2), max_size=9).map(lambda tokens: np.array(tokens, np.int32))


def layers_of(tokens):
    """Return keys that identify their tokens."""
    keys = torch.from_numpy(tokens.astype(np.float32)).reshape(1, -1, 1)
    return [(keys, -keys)]


@settings(deadline=None)
@given(st.lists(TOKENS, max_size=12), TOKENS, st.integers(1, 40))
def test_the_longest_known_beginning_is_found(stored, query, most):
    cache = PrefixCache(8 * most)  # a token has a key and a value of 4 bytes
    for tokens in stored:
        cache.keep(tokens, layers_of(tokens))
        assert cache.bytes <= 8 * most
    layers, count = cache.find(query)
    naive = 0
    for tokens in stored:
        same = [a == b for a, b in zip(tokens, query, strict=False)]
        naive = max(naive, same.index(False) if False in same else len(same))
    if sum(map(len, stored)) <= most:
        assert count == naive
    assert count <= naive
    if count:
        [(keys, values)] = layers
        assert keys[0, :, 0].tolist() == (-values[0, :, 0]).tolist() == query[:count].tolist()
    else:
        assert layers == []


def test_the_least_recently_used_prefix_is_evicted_first():
    cache = PrefixCache(8 * 6)
    for first in range(3):
        cache.keep(np.full(2, first, np.int32), layers_of(np.full(2, first, np.int32)))
    assert cache.find(np.zeros(2, np.int32))[1] == 2
    cache.keep(np.full(2, 7, np.int32), layers_of(np.full(2, 7, np.int32)))
    assert [cache.find(np.full(2, first, np.int32))[1] for first in (0, 1, 2, 7)] == [2, 0, 2, 2]
    cache.keep(np.array([0, 0, 5], np.int32), layers_of(np.array([0, 0, 5], np.int32)))
    assert cache.bytes == 8 * 5, "0 0 became 0 0 5, for which 2 2 or 7 7 went"
    cache.keep(np.arange(10, 20, dtype=np.int32), layers_of(np.arange(10, 20)))
    assert cache.bytes == 8 * 5, "longer than all there is room for"
    cache.clear()
    assert cache.find(np.zeros(2, np.int32)) == ([], 0)


@settings(deadline=None)
@given(st.lists(TOKENS, max_size=12), st.integers(1, 6))
def test_shared_beginnings_are_computed_once(prompts, least_saved):
    levels = shared_prefixes(prompts, least_saved)
    cached = {()}
    computed = 0
    for level in levels:
        assert level
        tokens = [tuple(prompts[prefix.prompt][: prefix.length].tolist()) for prefix in level]
        for prefix, start in zip(level, tokens, strict=True):
            having = [index for index, prompt in enumerate(prompts) if tuple(prompt[: prefix.length].tolist()) == start]
            assert prefix.prompt == having[0]
            before = max((each for each in cached if start[: len(each)] == each), key=len)
            assert (len(having) - 1) * (len(start) - len(before)) >= least_saved
            computed += len(start) - len(before)
        cached |= set(tokens)
    for prompt in map(tuple, (prompt.tolist() for prompt in prompts)):
        computed += len(prompt) - max(len(each) for each in cached if prompt[: len(each)] == each)
    different = {tuple(prompt[: count + 1].tolist()) for prompt in prompts for count in range(len(prompt))}
    assert computed >= len(different)
    if least_saved == 1:
        assert computed == len(different), "every token of the tree once"


@pytest.mark.parametrize("prefix_cache_bytes", [0, 1 << 30])
def test_a_common_system_prompt_is_computed_once(prefix_cache_bytes, make_model, tokenizer, own_words, monkeypatch):
    model = make_model("qwen3")
    generate = engine.Transformers(model, tokenizer, prefix_cache_bytes=prefix_cache_bytes)
    random = np.random.default_rng(0)
    rules, example = (random.integers(0, generate.vocabulary_size, count, dtype=np.int32) for count in (70, 40))
    sampling = Sampling(temperature=0.7, max_tokens=6)
    beginnings = [rules, np.concatenate([rules, example]), rules, np.concatenate([rules, example, example])]
    ends = [random.integers(0, generate.vocabulary_size, 3 + count, dtype=np.int32) for count in range(8)]
    prompts = [np.concatenate([beginnings[index % 4], end]) for index, end in enumerate(ends)]
    prompts.append(prompts[3][:-1])  # a prefix of another one
    requests = [Request(prompt, seed, sampling) for seed, prompt in enumerate(prompts)]
    run, fed = model.model.forward, []

    def counted(input_ids, **options):
        fed.append(input_ids.numel())
        return run(input_ids, **options)

    monkeypatch.setattr(model.model, "forward", counted)
    segments = generate_all(generate, requests)
    prefill = [count for count in fed if count > len(prompts)]
    different = {tuple(prompt[: count + 1].tolist()) for prompt in prompts for count in range(len(prompt) - 1)}
    cached = sum(segment.cached_tokens for segment in segments)
    computed = sum(len(prompt) - 1 for prompt in prompts) - cached
    assert len(different) <= computed < len(different) + LEAST_SAVED, (
        "each but the shortest is computed for one of them"
    )
    assert sum(prefill) < 1.5 * computed, "with padding"
    monkeypatch.undo()
    for request, segment in zip(requests, segments, strict=True):
        logprobs, entropies = own_words(model, request, segment, sampling)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(segment.entropies, entropies, atol=1e-5)
    if prefix_cache_bytes:
        later = generate_all(generate, [Request(np.append(rules, [1, 2]).astype(np.int32), 1, sampling)])
        assert later[0].cached_tokens >= len(rules)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_turns_and_forks_compute_only_tokens_that_are_not_cached(family, make_model, tokenizer, own_words):
    model = make_model(family)
    generate, fresh = (
        engine.Transformers(model, tokenizer),
        engine.Transformers(model, tokenizer, prefix_cache_bytes=0),
    )
    sampling = Sampling(temperature=0.7, max_tokens=12)
    random = np.random.default_rng(0)
    prompts = [random.integers(0, generate.vocabulary_size, count, dtype=np.int32) for count in (1, 7, 30)]
    requests = [Request(prompt, seed, sampling) for seed, prompt in enumerate([*prompts, prompts[2]])]
    first = generate_all(generate, requests)
    assert [segment.cached_tokens for segment in first] == [0, 0, 0, 29], "the last one is the prompt before it again"
    turns, expected = [], []
    for seed, (request, segment) in enumerate(zip(requests, first, strict=True)):
        history = np.concatenate([request.tokens, segment.tokens])
        observed = random.integers(0, generate.vocabulary_size, 3 + 2 * seed, dtype=np.int32)
        turns.append(Request(np.concatenate([history, observed]), 100 + seed, sampling))
        expected.append(len(history) - 1)  # the last token was sampled and is never an input
        turns.append(Request(history[: len(request.tokens) + 5], 200 + seed, sampling))
        expected.append(len(request.tokens) + 4)  # the last token of a request is always an input
    second = generate_all(generate, turns)
    assert [segment.cached_tokens for segment in second] == expected
    alone = [generate_all(fresh, [turn])[0] for turn in turns]
    for request, segment, other in zip(turns, second, alone, strict=True):
        assert segment.tokens.tolist() == other.tokens.tolist()
        assert other.cached_tokens == 0
        logprobs, entropies = own_words(model, request, segment, sampling)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(segment.entropies, entropies, atol=1e-5)


def test_an_aborted_segment_stays_in_the_prefix_cache(make_model, tokenizer, own_words):
    import asyncio

    generate = engine.Transformers(make_model("qwen3"), tokenizer)
    request = Request(np.arange(9, dtype=np.int32), 1, Sampling(max_tokens=200))
    step, reached = generate._step, []

    async def run():
        task = asyncio.create_task(generate.generate(request))
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        def counted():
            reached.append(None)
            if len(reached) == 20:
                loop.call_soon_threadsafe(enough.set)
            generate._mail.put([])  # a message without requests: one step at a time
            return step()

        generate._step = counted
        await enough.wait()
        generate.abort(request)
        return await task

    partial = asyncio.run(run())
    generate._step = step
    assert partial.finish_reason == "abort"
    assert 20 <= len(partial.tokens) < 200
    history = np.concatenate([request.tokens, partial.tokens])
    sampling = Sampling(max_tokens=5)
    [rest] = generate_all(generate, [Request(history, 2, sampling)])
    assert rest.cached_tokens == len(history) - 1
    logprobs = own_words(generate.model, Request(history, 2, sampling), rest, sampling)[0]
    np.testing.assert_allclose(rest.logprobs, logprobs, atol=1e-5)


@pytest.mark.parametrize("how", ["stepped", "data", "buffer", "disabled", "told", "another"])
def test_changed_weights_invalidate_the_prefix_cache(how, make_model, tokenizer, own_words):
    model = make_model("qwen3")
    if how == "disabled":
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", init_lora_weights=False))
    generate = engine.Transformers(model, tokenizer)
    sampling = Sampling(max_tokens=8)
    request = Request(np.arange(20, dtype=np.int32), 1, sampling)
    generate_all(generate, [request])
    assert generate_all(generate, [request])[0].cached_tokens == 19
    if how == "stepped":  # without notice to the engine
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.arange(5)[None]).logits.sum().backward()
        optimizer.step()
    elif how == "data":
        model.model.layers[0].self_attn.k_proj.weight.data[0, 0] += 1  # torch counts no version of it
    elif how == "buffer":
        model.model.rotary_emb.inv_freq.mul_(0.5)
    elif how == "disabled":
        model.base_model.disable_adapter_layers()
    elif how == "told":
        generate.update_weights(model, 1)
    else:
        model = make_model("qwen3", seed=1)
        generate.update_weights(model, 1)
    [segment] = generate_all(generate, [request])
    assert segment.cached_tokens == 0
    np.testing.assert_allclose(segment.logprobs, own_words(model, request, segment, sampling)[0], atol=1e-5)


def test_a_batch_invariant_engine_is_bitwise_identical_after_other_requests(make_model, tokenizer):
    model = make_model("qwen3")
    request = Request(np.arange(20, dtype=np.int32), 1, Sampling(max_tokens=16))
    generate = engine.Transformers(model, tokenizer, batch_invariant=True)
    [first] = generate_all(generate, [request])
    others = [
        Request(np.concatenate([request.tokens[:9], [number]]).astype(np.int32), 2, Sampling()) for number in (1, 2)
    ]
    segments = generate_all(generate, [*others, request])
    assert segments[-1].logprobs.tolist() == first.logprobs.tolist()
    assert segments[-1].entropies.tolist() == first.entropies.tolist()
    assert [segment.cached_tokens for segment in segments] == [0, 0, 0]


def test_a_copy_changes_only_with_an_update(make_model, tokenizer, own_words):
    policy = make_model("qwen3")
    generate = engine.Transformers(policy, tokenizer, copy=True)
    assert not generate.shares_parameters
    assert engine.Transformers(policy, tokenizer).shares_parameters
    request = Request(np.arange(5, dtype=np.int32), 1, Sampling(max_tokens=8))
    [before] = generate_all(generate, [request])
    with torch.no_grad():
        policy.lm_head.weight.mul_(0.5)
    [same] = generate_all(generate, [request])
    np.testing.assert_allclose(same.logprobs, before.logprobs, atol=1e-5)
    generate.update_weights(policy, 1)
    [after] = generate_all(generate, [request])
    np.testing.assert_allclose(after.logprobs, own_words(policy, request, after, request.sampling)[0], atol=1e-5)
    assert not generate.shares_parameters


def test_wrong_calls(make_model, tokenizer):
    with pytest.raises(InvalidInputError, match="prefix_cache_bytes is -1"):
        engine.Transformers(make_model("llama"), tokenizer, prefix_cache_bytes=-1)
