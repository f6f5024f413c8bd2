"""A real vLLM server process: the engine returns the log-probs of the model's own forward, or reports a reason."""

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import httpx
import numpy as np
import pytest
import torch
from checked_segments import check, some_requests
from pages import block
from vllm_server import ARGUMENTS, serving

from agentrl_core import Store, engine, scan
from agentrl_core.engine import EntropyTemperature, Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import EngineError, InvalidInputError, UnsupportedError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def policy(make_model):
    """A model with tied embeddings: their copy in the head is easily missed by an update."""
    return make_model("qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def saved(policy, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "model"
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(saved):
    with serving(saved, saved.parent / "log", *ARGUMENTS) as running:
        yield running


@pytest.fixture(scope="module")
def generate(server, tokenizer, saved):
    vllm_engine = engine.VllmServer(server.url, tokenizer, folder=saved.parent / "weights", seconds=600.0)
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
def test_log_probs_match_a_forward_pass_of_the_model(sampling, generate, policy, own_words):
    check(generate, policy, own_words, sampling, version=0)


def test_a_seed_determines_a_segment_that_ends_after_its_stop_token(generate):
    stops = tuple(range(0, generate.vocabulary_size, 5))
    requests = some_requests(generate.vocabulary_size, Sampling(max_tokens=6, stop_token_ids=stops))
    first, second = generate_all(generate, requests), generate_all(generate, requests[::-1])[::-1]
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in second]
    assert {segment.finish_reason for segment in first} == {"stop", "length"}
    for segment in first:
        assert not set(segment.tokens[:-1].tolist()) & set(stops)
        assert (segment.finish_reason == "stop") == (int(segment.tokens[-1]) in stops)


def test_top_tokens_are_sorted_and_may_have_logprobs_of_minus_infinity(generate, policy):
    prompt = np.array([5, 6, 7], np.int32)
    samplings = [
        Sampling(temperature=0.0, max_tokens=6, top=3),
        Sampling(temperature=0.7, top_k=2, max_tokens=6, top=12),
        Sampling(temperature=1.5, max_tokens=6, top=12),  # flat: the sampled token is often not among them
        Sampling(max_tokens=6),
    ]
    segments = generate_all(generate, [Request(prompt, 1, sampling) for sampling in samplings])
    assert segments[3].top is None
    for segment, sampling in zip(segments[:3], samplings, strict=False):
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
    assert not segments[0].logprobs.any()
    assert not set(segments[2].tokens.tolist()) <= set(segments[2].top.tokens.ravel().tolist())


def test_without_entropies_the_rest_is_the_same(generate, server, tokenizer):
    lean = engine.VllmServer(server.url, tokenizer, entropies=False)
    assert (lean.entropy_estimator, generate.entropy_estimator) == ("none", "top_10")
    for sampling in (Sampling(temperature=0.7, max_tokens=8), Sampling(max_tokens=8, top=3)):
        requests = some_requests(generate.vocabulary_size, sampling, count=6)
        for one, other in zip(generate_all(lean, requests), generate_all(generate, requests), strict=True):
            assert one.entropies is None
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
            assert (one.top is None) == (sampling.top == 0)
            if one.top is not None:
                assert one.top.tokens.tolist() == other.top.tokens.tolist()
    lean.close()


def test_a_fork_reuses_the_blocks_that_its_origin_left(generate):
    random = np.random.default_rng(11)
    prompt = random.integers(0, generate.vocabulary_size, 70, dtype=np.int32)
    [first] = generate_all(generate, [Request(prompt, 1, Sampling(max_tokens=10), "tree")])
    assert first.cached_tokens == 0
    forked = np.concatenate([prompt, first.tokens[:4], [3]]).astype(np.int32)
    [second] = generate_all(generate, [Request(forked, 2, Sampling(max_tokens=4), "tree")])
    assert second.cached_tokens == 64, "two whole blocks of 32"


def test_aborted_requests_return_the_tokens_generated_so_far(generate):
    sampling = Sampling(max_tokens=100)
    requests = [Request(np.array([5, 6, number], np.int32), number, sampling) for number in range(4)]
    undisturbed = generate_all(generate, requests)

    async def run(seconds):
        tasks = [asyncio.create_task(generate.generate(request)) for request in requests]
        await asyncio.sleep(seconds)
        generate.abort(requests[0])
        generate.abort(Request(requests[0].tokens, 0, sampling))  # which no request had
        return await asyncio.gather(*tasks)

    for _ in range(10):  # on a busy machine, all tokens may be generated before the abort arrives
        at_once = asyncio.run(run(0.0))
        if at_once[0].finish_reason == "abort":
            break
    assert (at_once[0].finish_reason, at_once[0].policy_version) == ("abort", 0)
    length, seconds = 0, 0.05
    while not 0 < length < 100:  # the test needs a moment in the middle, even on a fast machine
        segments = asyncio.run(run(seconds))
        length = len(segments[0].tokens)
        seconds *= 2.0 if length == 0 else 0.6
        for number, (segment, other) in enumerate(zip(segments, undisturbed, strict=True)):
            count = len(segment.tokens)
            assert (segment.finish_reason == "abort") == (count < 100)
            assert number == 0 or count == 100
            assert segment.tokens.tolist() == other.tokens[:count].tolist()
            np.testing.assert_allclose(segment.logprobs, other.logprobs[:count], atol=1e-5)
            np.testing.assert_allclose(segment.entropies, other.entropies[:count], atol=1e-5)


def test_closing_takes_back_an_abort_that_is_still_on_its_way(server, tokenizer):
    """Through a network that drops aborts: the request ends by itself meanwhile."""
    address = urllib.parse.urlsplit(server.url)

    async def run():
        request_sent, abort_dropped = asyncio.Event(), asyncio.Event()

        async def copied(source, sink):
            while data := await source.read(1 << 16):
                if b"/abort_requests" in data:
                    abort_dropped.set()
                    await source.read()  # all data until the engine closes the connection
                    break
                sink.write(data)
                if b'"max_tokens":100' in data:
                    request_sent.set()
            sink.close()

        relays = set()

        async def relay(reader, writer):
            relays.add(asyncio.current_task())
            answers, questions = await asyncio.open_connection(address.hostname, address.port)
            await asyncio.gather(copied(reader, questions), copied(answers, writer))
            await asyncio.gather(questions.wait_closed(), writer.wait_closed())

        door = await asyncio.start_server(relay, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
        client = await asyncio.to_thread(engine.VllmServer, url, tokenizer, seconds=600.0)
        request = Request(np.array([5, 6, 7], np.int32), 0, Sampling(max_tokens=100))
        answer = asyncio.create_task(client.generate(request))
        await request_sent.wait()
        client.abort(request)
        await abort_dropped.wait()
        segment = await answer
        assert (segment.finish_reason, len(segment.tokens)) == ("length", 100)
        await asyncio.to_thread(client.close)
        assert not asyncio.all_tasks(client._loop)
        door.close()
        await asyncio.gather(*relays)  # the engine has closed its connections

    asyncio.run(run())


def counted(server, name):
    """Return a counter among the server's metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith(f"vllm:{name}{{")]
    return float(line.rpartition(" ")[2])


def until(holds):
    """Wait until a condition holds."""
    end = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_cancelled_wait_gives_the_request_up_on_the_server_too(generate, server):
    sampling = Sampling(max_tokens=120)

    async def run():
        tasks = [
            asyncio.create_task(generate.generate(Request(np.array([4], np.int32), seed, sampling)))
            for seed in range(30)
        ]
        await asyncio.to_thread(
            until, lambda: counted(server, "num_requests_running") or all(task.done() for task in tasks)
        )
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    for _ in range(20):  # if the machine pauses for a moment, all are complete before one is aborted
        before = counted(server, "generation_tokens_total")
        answers = asyncio.run(run())
        until(lambda: not generate._servers[0].busy and not counted(server, "num_requests_running"))
        assert not generate._open_requests
        assert [one.busy for one in generate._servers] == [0]
        if counted(server, "generation_tokens_total") - before < 30 * 120:
            break
    else:
        pytest.fail("the server generated all tokens of requests that were given up")
    assert any(isinstance(answer, asyncio.CancelledError) for answer in answers)


def test_a_weight_update_aborts_running_requests_and_applies_to_later_ones(generate, make_model, policy, own_words):
    sampling = Sampling(temperature=0.7, max_tokens=10)
    models = [policy, make_model("qwen3", tie_word_embeddings=True, seed=1)]
    long = [Request(np.array([5, 6, number], np.int32), number, Sampling(max_tokens=100)) for number in range(6)]

    async def run(version):
        segments = [[] for _ in long]
        update = asyncio.create_task(asyncio.to_thread(generate.update_weights, models[version % 2], version))

        async def again_and_again(request, generated):
            while not update.done() or (update.exception() is None and generated[-1].policy_version != version):
                generated.append(await generate.generate(request))

        await asyncio.gather(*map(again_and_again, long, segments))
        await update
        return segments

    for version in range(1, 21):  # if the machine pauses for a moment, all are complete before the update
        undisturbed = generate_all(generate, long)
        segments = asyncio.run(run(version))
        reasons = {(one.policy_version, one.finish_reason) for generated in segments for one in generated}
        last = version - 1
        assert {(version, "length")} <= reasons <= {(last, "abort"), (last, "length"), (version, "length")}
        for request, generated, before in zip(long, segments, undisturbed, strict=True):
            for segment in generated:
                if segment.policy_version == last:
                    assert segment.tokens.tolist() == before.tokens[: len(segment.tokens)].tolist()
                    assert (segment.finish_reason == "abort") == (len(segment.tokens) < 100)
            logprobs = own_words(models[version % 2], request, generated[-1], request.sampling, top=10)[0]
            np.testing.assert_allclose(generated[-1].logprobs, logprobs, atol=1e-5)
            versions = [segment.policy_version for segment in generated]
            assert versions == sorted(versions)
        if (last, "abort") in reasons:
            break
    else:
        pytest.fail("new weights ended nothing that ran")
    check(generate, models[version % 2], own_words, sampling, version=version)
    generate.update_weights(policy, version + 1)
    check(generate, policy, own_words, sampling, version=version + 1)
    assert generate.policy_version == version + 1
    assert [path.name for path in generate._folder.iterdir()] == [f"version-{version + 1}"]


def test_weights_loaded_by_another_client_are_rejected(generate, server, tokenizer, policy):
    version = generate.policy_version
    request = Request(np.array([5, 6], np.int32), 0, Sampling(max_tokens=4))
    stranger = engine.VllmServer(server.url, tokenizer, folder=generate._folder.parent / "stranger")
    assert stranger.policy_version == version, "as the server says"
    stranger.update_weights(policy, version + 5)
    stranger.close()
    with pytest.raises(EngineError, match=f"no server has weights of version {version} .*{version + 5}"):
        generate_all(generate, [request])
    generate.update_weights(policy, version + 6)
    assert generate_all(generate, [request])[0].policy_version == version + 6


def test_wrong_calls(generate, server, tokenizer, policy):
    with pytest.raises(InvalidInputError, match=r"temperature is 0\.001"):
        generate_all(generate, some_requests(generate.vocabulary_size, Sampling(temperature=0.001)))
    with pytest.raises(UnsupportedError, match=r"sample with engine\.Vllm or engine\.Transformers"):
        generate_all(
            generate, some_requests(generate.vocabulary_size, Sampling(by_entropy=EntropyTemperature(0, 1, 1)))
        )
    with pytest.raises(InvalidInputError, match="greater than max allowed: 20"):
        generate_all(generate, some_requests(generate.vocabulary_size, Sampling(top=21)))
    with pytest.raises(InvalidInputError, match="leaves no room for an answer in the context of 128 tokens"):
        generate_all(generate, [Request(np.ones(128, np.int32), 0, Sampling())])
    with pytest.raises(InvalidInputError, match="outside the vocabulary"):
        generate_all(generate, [Request(np.array([10**6], np.int32), 0, Sampling())])
    with pytest.raises(InvalidInputError, match="urls is empty"):
        engine.VllmServer([], tokenizer)
    with pytest.raises(InvalidInputError, match="seconds is 0"):
        engine.VllmServer(server.url, tokenizer, seconds=0)
    fixed = engine.VllmServer(server.url, tokenizer)
    with pytest.raises(InvalidInputError, match="has no folder"):
        fixed.update_weights(policy, 99)
    fixed.close()
    with pytest.raises(UnsupportedError, match="Linear contains no Hugging Face model"):
        generate.update_weights(torch.nn.Linear(1, 1), 99)
    with pytest.raises(InvalidInputError, match="sees no checkpoint at /nowhere"):
        generate._wait(generate._replace("/nowhere", 99))
    request = Request(np.array([5, 6], np.int32), 0, Sampling(max_tokens=4))
    assert generate_all(generate, [request])[0].policy_version == generate.policy_version, "as it was"


def test_a_segment_ends_where_the_context_does(generate):
    [segment] = generate_all(generate, [Request(np.ones(120, np.int32), 0, Sampling(max_tokens=50))])
    assert segment.finish_reason == "length"
    assert len(segment.tokens) == 8


def test_the_trainer_of_the_page_runs_beside_a_server(generate, server, policy, saved, tmp_path):
    """The code of docs/engines.md: a trainer of its own, beside the server of the other tests."""
    generate.update_weights(policy, 0)
    (tmp_path / "weights").mkdir()
    (tmp_path / "trainer.py").write_text(block("engines", "python"))
    completed = subprocess.run(
        [sys.executable, "trainer.py", str(saved), "weights", "runs/served", server.url],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version-3"]
    with Store.open(tmp_path / "runs" / "served", read_only=True) as store:
        assert store.iteration == 3
        assert not store.verify()
        tables = scan(store)
        nodes = tables.nodes.select("group_id", "policy_version").drop_nulls()
        of_group = tables.trajectories.select("group_id", "iteration").unique()
        rows = nodes.join(of_group, on="group_id").select("iteration", "policy_version").unique().collect()
    sampled = set(rows.iter_rows())
    assert {iteration for iteration, _ in sampled} == {0, 1, 2}
    assert all(iteration - 1 <= version <= iteration for iteration, version in sampled)
    assert len({version for _, version in sampled}) > 1  # a busy machine may skip a version
    generate.update_weights(policy, 4)


def test_where_no_server_answers_all_are_let_go(tokenizer):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}", "http://127.0.0.1:9"]
        with pytest.raises(EngineError, match="does not answer"):
            engine.VllmServer(urls, tokenizer, seconds=1.0)
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(60.0)
            while connection.recv(1 << 16):  # until it is closed
                pass


def test_a_dead_server_is_skipped_and_a_misconfigured_restart_is_rejected(saved, server, tokenizer, policy):
    half = engine.VllmServer([server.url, "http://127.0.0.1:9"], tokenizer)
    assert half.context_tokens == 128
    half.close()
    with pytest.raises(UnsupportedError, match="does not accept token ids"):
        engine.VllmServer(f"{server.url}/elsewhere", tokenizer)
    request = Request(np.array([5, 6], np.int32), 0, Sampling(max_tokens=4), "of the lost")
    urls = [server.url, server.url]
    both = engine.VllmServer(urls, tokenizer, folder=saved.parent / "both", patience=1.0)
    lost, other = both._servers
    both._homes._homes["of the lost"] = lost
    lost._connections.url = "http://127.0.0.1:9"  # a port without a server
    assert len(generate_all(both, [request])[0].tokens) == 4
    assert both._homes._homes["of the lost"] is other
    with pytest.warns(RuntimeWarning, match="left out until it answers again"):
        both.update_weights(policy, 50)
    assert (lost.version, other.version) == (-1, 50)
    assert [segment.policy_version for segment in generate_all(both, [request] * 3)] == [50] * 3
    lost._connections.url = server.url
    both.update_weights(policy, 51)
    both._homes._homes["of the lost"] = lost
    assert generate_all(both, [request])[0].policy_version == lost.version == 51
    slow = engine.VllmServer(server.url, tokenizer, patience=0.5)
    [client] = slow._servers[0]._connections._free
    client.timeout = httpx.Timeout(600.0, read=0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow._servers[0]._connections.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineError, match=r"does not answer .ReadTimeout"):
            generate_all(slow, [request])
    slow.close()
    server.stop()
    with pytest.raises(EngineError, match="does not answer"):
        generate_all(both, [request])
    with pytest.raises(EngineError, match="does not answer"):
        both.update_weights(policy, 52)
    with serving(saved, saved.parent / "log again", "--enable-scale-out", port=int(server.url.rpartition(":")[2])):
        with pytest.raises(EngineError, match=r"no server has weights of version 51 .*: -1"):
            generate_all(both, [request])
        with pytest.raises(UnsupportedError, match=r"worker-extension-cls agentrl_core\.engine\.vllm_worker"):
            both.update_weights(policy, 53)
        # Log-probabilities before temperature, top_k and top_p are vLLM's own default.
        with pytest.raises(
            InvalidInputError, match=r"does not report log-probabilities of the distribution .*processed_logprobs"
        ):
            engine.VllmServer(server.url, tokenizer)
    both.close()
