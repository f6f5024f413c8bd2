"""The real vLLM: its log-probs equal the model's own, before and after a weight update."""

import asyncio

import numpy as np
import pytest
from checked_segments import check, some_requests
from entropy_rule import SAMPLINGS, checked_heights
from gate import Gate

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.logprob_check import check_logprobs, sample_requests
from agentrl_core.exceptions import InvalidInputError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def policy(make_model):
    """A model with tied embeddings: their copy in the head is easily missed by an update."""
    return make_model("qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def generate(policy, tokenizer):
    # Blocks small enough that prefixes are cached, and steps small enough that not all prompts fit into one.
    vllm_engine = engine.Vllm(policy, tokenizer, max_model_len=128, block_size=32, max_num_batched_tokens=128)
    yield vllm_engine
    vllm_engine.close()
    vllm_engine.close()
    with pytest.raises(InvalidInputError, match="closed"):
        generate_all(vllm_engine, [Request(np.array([1], np.int32), 0, Sampling())])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=10),
        Sampling(temperature=0.7, max_tokens=10),
        Sampling(temperature=0.7, top_k=5, max_tokens=10),
        Sampling(temperature=1.2, top_p=0.8, max_tokens=10),
    ],
    ids=str,
)
def test_log_probs_equal_the_models_own_forward(sampling, generate, policy, own_words):
    check(generate, policy, own_words, sampling, version=generate.policy_version)


def test_the_temperature_of_each_token_follows_from_its_entropy(generate, policy):
    assert generate.precision == 32
    pairs = list(zip(*(some_requests(generate.vocabulary_size, sampling) for sampling in SAMPLINGS), strict=True))
    requests = [pair[place % 2] for place, pair in enumerate(pairs)]  # those that follow the rule among others
    heights = checked_heights(generate, policy, requests)
    assert min(heights) < -0.1
    assert max(heights) > 0.1


def test_segments_end_with_the_stop_token_or_at_the_limit(generate):
    stops = tuple(range(0, generate.vocabulary_size, 5))
    reasons = set()
    sampling = Sampling(max_tokens=6, stop_token_ids=stops)
    for segment in generate_all(generate, some_requests(generate.vocabulary_size, sampling)):
        reasons.add(segment.finish_reason)
        assert not set(segment.tokens[:-1].tolist()) & set(stops)
        assert (segment.finish_reason == "stop") == (int(segment.tokens[-1]) in stops)
        assert len(segment.tokens) == 6 or segment.finish_reason == "stop"
    assert reasons == {"stop", "length"}


def test_a_seed_decides_a_segment_and_temperature_zero_needs_none(generate):
    sampling = Sampling(max_tokens=12)
    [first, second, *_] = some_requests(generate.vocabulary_size, sampling)
    one, two = (generate_all(generate, [first])[0] for _ in range(2))
    assert one.tokens.tolist() == two.tokens.tolist()
    among = generate_all(generate, [second, first])[1]
    assert one.tokens.tolist() == among.tokens.tolist()
    other = generate_all(generate, [Request(first.tokens, 5, sampling)])[0]
    assert one.tokens.tolist() != other.tokens.tolist()
    [greedy] = generate_all(generate, [Request(first.tokens, 1, Sampling(temperature=0.0, max_tokens=12))])
    assert not greedy.logprobs.any()
    assert not greedy.entropies.any()


def test_updated_weights_are_the_ones_sampled_from(generate, make_model, policy, own_words):
    sampling = Sampling(temperature=0.7, max_tokens=10)
    check(generate, policy, own_words, sampling, version=generate.policy_version)  # fills the prefix cache
    other = make_model("qwen3", tie_word_embeddings=True, seed=1)
    for version, model in enumerate((other, policy), generate.policy_version + 1):
        generate.update_weights(model, version=version)
        check(generate, model, own_words, sampling, version=version)
        assert generate.policy_version == version


def test_weights_that_do_not_fit_leave_the_engine_as_it_is(generate, make_model, policy, own_words):
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self, module, name):
            super().__init__()
            setattr(self, name, module)

    sampling, version = Sampling(max_tokens=6), generate.policy_version
    broken = make_model("qwen3", tie_word_embeddings=True, seed=1)
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    wrong = {
        "does not fit": make_model("llama"),
        "has shape": make_model("qwen3", tie_word_embeddings=True, intermediate_size=128),
        "holds NaN": broken,
    }
    for message, model in wrong.items():
        with pytest.raises(InvalidInputError, match=message):
            generate.update_weights(model, version=99)
        check(generate, policy, own_words, sampling, version=version)
    other = make_model("qwen3", tie_word_embeddings=True, seed=1)
    for number, name in enumerate(("_orig_mod", "module"), version + 1):
        generate.update_weights(Wrapper(other, name), version=number)
        check(generate, other, own_words, sampling, version=number)
    generate.update_weights(policy, version=version + 3)
    check(generate, policy, own_words, sampling, version=version + 3)


def test_top_tokens_are_reported_for_each_request_of_a_mixed_batch(generate, policy):
    import torch

    prompt = np.array([5, 6, 7], np.int32)
    samplings = [
        Sampling(temperature=0.0, max_tokens=6, top=3),
        Sampling(temperature=0.7, top_k=2, max_tokens=6, top=12),
        Sampling(max_tokens=6),
    ]
    segments = generate_all(generate, [Request(prompt, 1, sampling) for sampling in samplings])
    assert segments[2].top is None
    for segment, sampling in zip(segments[:2], samplings, strict=False):
        ids = torch.from_numpy(np.concatenate([prompt, segment.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            x = policy(ids).logits[0, len(prompt) - 1 : -1].double() / (sampling.temperature or 1.0)
        count = sampling.top_k or sampling.top
        values, tokens = x.topk(count)
        normalizer = torch.logsumexp(values if sampling.top_k else x, -1, keepdim=True)
        assert segment.top.tokens.shape == segment.top.logprobs.shape == (6, sampling.top)
        assert segment.top.tokens[:, :count].tolist() == tokens.tolist()
        np.testing.assert_allclose(segment.top.logprobs[:, :count], values - normalizer, atol=1e-5)
        assert np.isneginf(segment.top.logprobs[:, count:]).all()
    assert segments[0].tokens.tolist() == segments[0].top.tokens[:, 0].tolist()


def test_requests_join_a_running_batch_and_aborted_ones_keep_their_tokens(generate, make_model, policy):
    sampling = Sampling(max_tokens=60)
    requests = [Request(np.array([5, 6, number], np.int32), number, sampling) for number in range(6)]
    alone = [generate_all(generate, [request])[0] for request in requests]
    step, version = generate._step, generate.policy_version
    gate = Gate(generate)

    async def run():
        tasks = [asyncio.create_task(generate.generate(request)) for request in requests[:3]]
        await gate.stands()
        await gate.pass_(8)
        tasks += [asyncio.create_task(generate.generate(request)) for request in requests[3:]]
        await gate.receives_message()
        await gate.pass_(2)
        generate.abort(requests[0])
        await gate.pass_(2)
        aborted = await tasks[0]
        replaced = make_model("qwen3", tie_word_embeddings=True, seed=1)
        updating = asyncio.create_task(asyncio.to_thread(generate.update_weights, replaced, version + 1))
        await gate.receives_message()
        gate.open()
        await updating
        return [aborted, *await asyncio.gather(*tasks[1:])]

    segments = asyncio.run(run())
    generate._step = step
    assert max(gate.running) > 3
    assert segments[0].finish_reason == "abort"
    assert 7 <= len(segments[0].tokens) < 60
    assert all(segment.policy_version == version for segment in segments)
    for segment, undisturbed in zip(segments, alone, strict=True):
        count = len(segment.tokens)
        assert segment.tokens.tolist() == undisturbed.tokens[:count].tolist()
        np.testing.assert_allclose(segment.logprobs, undisturbed.logprobs[:count], atol=1e-5)
        np.testing.assert_allclose(segment.entropies, undisturbed.entropies[:count], atol=1e-5)
    assert segments[-1].finish_reason == "abort"
    assert not generate._requests
    generate.update_weights(policy, version + 2)
    [again] = generate_all(generate, requests[:1])
    assert again.tokens.tolist() == alone[0].tokens.tolist()


def test_a_fork_reuses_the_blocks_that_its_origin_left(generate):
    prompt = np.random.default_rng(11).integers(0, generate.vocabulary_size, 70, dtype=np.int32)
    [first] = generate_all(generate, [Request(prompt, 1, Sampling(max_tokens=10))])
    assert first.cached_tokens == 0
    forked = np.concatenate([prompt, first.tokens[:4], [3]]).astype(np.int32)
    [second] = generate_all(generate, [Request(forked, 2, Sampling(max_tokens=4))])
    assert second.cached_tokens == 64, "two whole blocks of 32"


def test_the_doctor_detects_wrong_mode_version_and_weights(generate, make_model, policy):
    sampling = Sampling(temperature=0.7, top_k=9, max_tokens=8)
    requests = sample_requests(generate.vocabulary_size, sampling, context_tokens=generate.context_tokens)
    version = generate.policy_version
    finding = check_logprobs(generate, policy, requests, version=version)
    assert finding.cause == "none"
    assert finding.cached_tokens > 0
    assert check_logprobs(generate, policy, requests, version=version + 1).cause == "version"
    assert check_logprobs(generate, make_model("qwen3", tie_word_embeddings=True, seed=1), requests).cause == "weights"
    # VllmServer and Vllm reject this mode at start: vLLM's own default.
    assert generate._llm.collective_rpc(_report, args=("raw_logprobs",)) == ["processed_logprobs"]
    try:
        raw = check_logprobs(generate, policy, requests, version=version)
    finally:
        generate._llm.collective_rpc(_report, args=("processed_logprobs",))
    assert raw.cause == "mode"
    assert raw.largest > 0.1
    assert check_logprobs(generate, policy, requests, version=version).cause == "none"


def _report(worker, mode):
    """Runs in vLLM's worker: report log-probs of another mode; return the previous one."""
    sampler = worker.model_runner.sampler
    before = sampler.logprobs_mode
    sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = mode
    return before


def test_wrong_calls(generate, policy, tokenizer, tmp_path):
    with pytest.raises(InvalidInputError, match="logprobs_mode is 'raw_logprobs'"):
        engine.Vllm(policy, tokenizer, logprobs_mode="raw_logprobs")
    with pytest.raises(InvalidInputError, match="no tokenizer is found"):
        engine.Vllm(tmp_path)
    with pytest.raises(InvalidInputError, match=r"temperature is 0\.001"):
        generate_all(generate, some_requests(generate.vocabulary_size, Sampling(temperature=0.001)))
    with pytest.raises(InvalidInputError, match="pass max_logprobs=21"):
        generate_all(generate, some_requests(generate.vocabulary_size, Sampling(top=21)))
    with pytest.raises(InvalidInputError, match="leaves no room for an answer in the context of 128 tokens"):
        generate_all(generate, [Request(np.ones(128, np.int32), 0, Sampling())])
    with pytest.raises(InvalidInputError, match="outside the vocabulary"):
        generate_all(generate, [Request(np.array([10**6], np.int32), 0, Sampling())])
