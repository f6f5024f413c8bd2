"""A stepping engine: newcomers, aborts, new weights, failures, many loops, and ends of all kinds."""

import asyncio
import gc
import multiprocessing
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest
from gate import Gate

from agentrl_core.engine import Request, Sampling, Transformers
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import EngineError, InvalidInputError

PROMPT = np.array([3, 1, 4, 1, 5], np.int32)
LONG = Sampling(max_tokens=40)


def ask(seed=0, sampling=LONG, tokens=PROMPT):
    return Request(tokens, seed, sampling)


@pytest.fixture
def generate(make_model, tokenizer):
    engine = Transformers(make_model("qwen3"), tokenizer)
    yield engine
    engine.close()


@pytest.fixture
def undisturbed(generate):
    """Return the undisturbed segment."""
    [segment] = generate_all(generate, [ask()])
    assert len(segment.tokens) == 40
    return segment


def begins(part, undisturbed):
    count = len(part.tokens)
    assert part.tokens.tolist() == undisturbed.tokens[:count].tolist()
    np.testing.assert_allclose(part.logprobs, undisturbed.logprobs[:count], atol=1e-5)
    np.testing.assert_allclose(part.entropies, undisturbed.entropies[:count], atol=1e-5)


def test_requests_that_join_a_running_batch_generate_the_same_as_alone(generate):
    samplings = [
        LONG,
        Sampling(temperature=0.7, top_p=0.9, max_tokens=25, stop_token_ids=tuple(range(0, 60, 7)), top=2),
        Sampling(temperature=0.0, max_tokens=12, top=3),
        Sampling(top_k=5, max_tokens=30),
    ]
    random = np.random.default_rng(5)
    requests = [
        ask(seed, samplings[seed % 4], random.integers(0, generate.vocabulary_size, 1 + 7 * seed % 23, np.int32))
        for seed in range(12)
    ]
    alone = [generate_all(generate, [request])[0] for request in requests]
    gate = Gate(generate)

    async def one_after_the_other():
        tasks = []
        for index, request in enumerate(requests):
            tasks.append(asyncio.create_task(generate.generate(request)))
            await (gate.pass_(2) if index else gate.stands())
        gate.open()
        return await asyncio.gather(*tasks)

    together = asyncio.run(one_after_the_other())
    assert max(gate.running) > 3
    for request, one, other in zip(requests, alone, together, strict=True):
        assert one.finish_reason == other.finish_reason
        assert len(one.tokens) == len(other.tokens)
        begins(one, other)
        assert (one.top is None) == (request.sampling.top == 0)
        if one.top is not None:
            assert one.top.tokens.shape == (len(one.tokens), request.sampling.top)
            np.testing.assert_allclose(one.top.logprobs, other.top.logprobs, atol=1e-5)


def test_a_batch_invariant_engine_gives_equal_bits_alone_together_and_late(make_model, tokenizer):
    generate = Transformers(make_model("qwen3"), tokenizer, batch_invariant=True)
    random = np.random.default_rng(5)
    lengths = random.integers(1, 40, 16).tolist()
    requests = [ask(seed, tokens=random.integers(0, 60, length, np.int32)) for seed, length in enumerate(lengths)]

    def bits(segments):
        return [(s.tokens.tobytes(), s.logprobs.tobytes(), s.entropies.tobytes()) for s in segments]

    alone = bits(generate_all(generate, [request])[0] for request in requests)
    assert bits(generate_all(generate, requests)) == alone
    gate = Gate(generate)

    async def late():
        first = [asyncio.create_task(generate.generate(request)) for request in requests[:3]]
        await gate.stands()
        await gate.pass_(5)
        rest = [asyncio.create_task(generate.generate(request)) for request in requests[3:]]
        gate.open()
        return await asyncio.gather(*first, *rest)

    assert bits(asyncio.run(late())) == alone
    assert max(gate.running) == 16
    generate.close()


def test_an_aborted_request_returns_the_tokens_generated_so_far(generate, undisturbed):
    gate = Gate(generate)

    async def abort():
        aborted, other, waiting = ask(), ask(1), ask(2)
        tasks = [asyncio.create_task(generate.generate(request)) for request in (aborted, other)]
        await gate.stands()  # the first token was sampled when the rows arrived
        await gate.pass_(3)
        generate.abort(aborted)
        late = asyncio.create_task(generate.generate(waiting))
        await asyncio.sleep(0)
        generate.abort(waiting)
        generate.abort(ask())  # unknown ones are ignored
        gate.open()
        return await asyncio.gather(*tasks, late)

    aborted, other, waiting = asyncio.run(abort())
    assert (aborted.finish_reason, len(aborted.tokens)) == ("abort", 5)
    begins(aborted, undisturbed)
    assert (other.finish_reason, len(other.tokens)) == ("length", 40)
    assert (waiting.finish_reason, len(waiting.tokens)) == ("abort", 0)
    assert len(waiting.logprobs) == len(waiting.entropies) == 0


def test_a_weight_update_aborts_running_requests_of_the_old_version(generate, make_model, undisturbed, own_words):
    other = make_model("qwen3", seed=1)
    gate = Gate(generate)

    async def update():
        task = asyncio.create_task(generate.generate(ask()))
        await gate.stands()
        await gate.pass_(2)
        updating = asyncio.create_task(asyncio.to_thread(generate.update_weights, other, 1))
        await gate.receives_message()
        gate.open()
        await updating
        return await task, await generate.generate(ask())

    before, after = asyncio.run(update())
    assert (before.finish_reason, before.policy_version) == ("abort", 0)
    assert 4 <= len(before.tokens) < 40
    begins(before, undisturbed)
    assert (after.finish_reason, after.policy_version) == ("length", 1)
    np.testing.assert_allclose(after.logprobs, own_words(other, ask(), after, LONG)[0], atol=1e-5)
    with pytest.raises(InvalidInputError, match="does not fit"):
        generate.update_weights(make_model("llama"), version=2)
    assert generate.policy_version == 1


def test_a_cancelled_wait_frees_its_row(generate, undisturbed):
    gate = Gate(generate)

    async def cancel():
        leaving, staying = (asyncio.create_task(generate.generate(ask())) for _ in range(2))
        await gate.stands()
        leaving.cancel()
        await gate.receives_message()
        await gate.pass_(2)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await staying

    begins(asyncio.run(cancel()), undisturbed)
    assert gate.running[:3] == [2, 1, 1]
    assert not generate._open_requests


def test_a_cancelled_wait_ends_when_no_thread_uses_the_model(generate):
    gate, model = Gate(generate), generate.model.train()

    async def cancel():
        tasks = [asyncio.create_task(generate.generate(ask(seed))) for seed in range(2)]
        await gate.stands()
        for task in tasks:
            task.cancel()
        await gate.receives_message()
        waiting = [not task.done() for task in tasks]
        for task in tasks:
            task.cancel()  # nested groups of tasks can cancel a request twice
        for _ in range(5):
            await asyncio.sleep(0)
        waiting += [not task.done() for task in tasks]
        trained = model.training
        gate.open()  # before the assertions, so that a failure does not leave the engine's thread waiting
        assert not trained
        assert all(waiting)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        return model.training, model.config._attn_implementation

    assert asyncio.run(cancel()) == (True, "sdpa")


def test_a_failed_step_fails_the_running_requests_but_not_the_engine(generate, undisturbed):
    forward = generate.model.forward
    failing = threading.Event()

    def sometimes(*args, **kwargs):
        if failing.is_set():
            raise RuntimeError("out of something")
        return forward(*args, **kwargs)

    generate.model.forward = sometimes
    gate = Gate(generate)

    async def fail():
        running = [asyncio.create_task(generate.generate(ask(seed))) for seed in range(3)]
        await gate.stands()
        failing.set()
        gate.open()
        return await asyncio.gather(*running, return_exceptions=True)

    for error in asyncio.run(fail()):
        assert isinstance(error, EngineError)
        assert "generating for 3 requests failed with RuntimeError: out of something" in str(error)
        assert isinstance(error.__cause__, RuntimeError)
    with pytest.raises(EngineError, match="for 1 requests"):  # before its first token
        generate_all(generate, [ask()])
    failing.clear()
    begins(generate_all(generate, [ask()])[0], undisturbed)


def test_newcomers_that_cannot_be_taken_leave_the_others_alone(generate, undisturbed):
    begin = generate._begin

    def refusing(newcomers):
        if any(request.seed == 1 for request in newcomers.values()):
            raise MemoryError("no room")
        return begin(newcomers)

    generate._begin = refusing
    gate = Gate(generate)

    async def run():
        running = asyncio.create_task(generate.generate(ask()))
        await gate.stands()
        newcomer = asyncio.create_task(generate.generate(ask(1)))
        await asyncio.sleep(0)
        gate.open()
        return await asyncio.gather(running, newcomer, return_exceptions=True)

    segment, error = asyncio.run(run())
    begins(segment, undisturbed)
    assert isinstance(error, EngineError)
    assert "generating for 1 requests failed with MemoryError: no room" in str(error)


def test_requests_come_from_many_loops_at_a_time(generate):
    requests = [[ask(10 * loop + index) for index in range(6)] for loop in range(4)]
    alone = [[segment.tokens.tolist() for segment in generate_all(generate, each)] for each in requests]
    results = [None] * 4

    def run(loop):
        results[loop] = [segment.tokens.tolist() for segment in generate_all(generate, requests[loop])]

    threads = [threading.Thread(target=run, args=(loop,)) for loop in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == alone


def test_results_of_a_step_arrive_in_request_order(generate):
    order = []

    async def one(index):
        await generate.generate(ask(index))
        order.append(index)

    async def all_of_them():
        await asyncio.gather(*map(one, range(20)))

    asyncio.run(all_of_them())
    assert order == list(range(20))


def test_the_mode_of_the_model_is_restored_before_results_arrive(make_model, tokenizer):
    model = make_model("qwen3")
    model.train()
    generate = Transformers(model, tokenizer)

    async def rounds():
        for seed in range(30):
            await asyncio.gather(*(generate.generate(ask(seed, Sampling(max_tokens=2))) for _ in range(3)))
            assert all(module.training for module in model.modules())

    asyncio.run(rounds())
    generate.close()


def test_an_idle_thread_does_not_keep_the_engine_alive(make_model, tokenizer):
    generate = Transformers(make_model("llama"), tokenizer)
    generate_all(generate, [ask(sampling=Sampling(max_tokens=2))])
    thread, reference = generate._thread, weakref.ref(generate)
    assert thread.is_alive()
    del generate
    gc.collect()
    assert reference() is None
    thread.join(600)
    assert not thread.is_alive()


def test_closing_an_engine_aborts_running_requests_and_rejects_new_ones(make_model, tokenizer):
    generate = Transformers(make_model("llama"), tokenizer)
    gate = Gate(generate)

    async def close():
        running = asyncio.create_task(generate.generate(ask()))
        await gate.stands()
        closing = asyncio.create_task(asyncio.to_thread(generate.close))
        await gate.receives_message()
        gate.open()
        await closing
        return await running

    segment = asyncio.run(close())
    assert segment.finish_reason == "abort"
    assert len(segment.tokens) >= 1
    assert not generate._thread.is_alive()
    generate.close()
    generate.abort(ask())
    with pytest.raises(InvalidInputError, match="this Transformers engine is closed"):
        generate_all(generate, [ask()])
    with pytest.raises(InvalidInputError, match="update_weights: this Transformers engine is closed"):
        generate.update_weights(generate.model, version=1)


def _asks(engine, answers):
    try:
        generate_all(engine, [ask()])
    except InvalidInputError as error:
        answers.put(str(error))
    engine.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang(generate, undisturbed):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_asks, args=(generate, answers))
    child.start()
    assert "its forked child" in answers.get(timeout=600)
    child.join(600)
    assert child.exitcode == 0
    begins(generate_all(generate, [ask()])[0], undisturbed)


def test_the_interpreter_ends_while_an_engine_works(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import asyncio, threading, numpy as np
            from agentrl_core import engine, env, warm_start
            import agentrl_core.engine.base

            model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)
            generate = engine.Transformers(model, tokenizer)
            sampling = engine.Sampling(max_tokens=100_000)
            request = engine.Request(np.array([1, 2], np.int32), seed=0, sampling=sampling)
            threading.Thread(target=lambda: engine.base.generate_all(generate, [request]), daemon=True).start()
            while not generate._running:
                pass
            print("over")
        """)
    )
    completed = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600, check=False)
    assert (completed.returncode, completed.stdout) == (0, "over\n"), completed.stderr
    assert not completed.stderr
