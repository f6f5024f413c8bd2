"""A teacher in vLLM in this process returns the model's own log-probs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hand_made import tiny_model
from riddles import TOKENIZER
from transformers import PreTrainedModel

from agentrl_core import Batch, Forest, annotate, engine
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.teacher_engine import TeacherEngine
from agentrl_core.exceptions import EngineError, InvalidInputError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

K = 4
COLUMNS = ("teacher_logprob", "teacher_top_logprobs")


def tiny(seed: int) -> PreTrainedModel:
    shape: dict[str, Any] = {"hidden_size": 64, "head_dim": 32, "max_position_embeddings": 256}
    return tiny_model("qwen3", seed=seed, vocab_size=len(TOKENIZER), initializer_range=0.1, **shape).eval()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[engine.Vllm, PreTrainedModel]]:
    model = tiny(1)
    generate = engine.Vllm(model, TOKENIZER, max_model_len=64, block_size=32, max_num_batched_tokens=64)
    yield generate, model
    generate.close()


def rollouts(temperature: float = 1.0, length: int = 3) -> Batch:
    """Two branches that continue one action with different tokens, and a group with the same prompt."""
    forest = Forest()
    forest.add_group(0, "task")
    one = forest.start(0, member=0)
    forest.append(one, [1, 2, 3], kind="prompt")
    node = forest.append(one, [4, 5, 6], kind="action", logprobs=[-1.0] * 3, temperature=temperature)
    two = forest.fork(one, node=node, end=1)
    forest.append(two, [7, 8], kind="action", logprobs=[-1.0] * 2, temperature=temperature)
    forest.append(one, [20, 21], kind="observation")
    forest.append(one, [9], kind="action", logprobs=[-1.0], temperature=temperature)
    for trajectory in (one, two):
        forest.finish(trajectory, reward=0.0)
    forest.add_group(1, "other")
    last = forest.start(1, member=0)
    forest.append(last, [1, 2, 3], kind="prompt")
    forest.append(last, list(range(30, 30 + length)), kind="action", logprobs=[-1.0] * length, temperature=temperature)
    forest.finish(last, reward=0.0)
    return forest.freeze()


def agrees(result: Batch, expected: Batch) -> None:
    np.testing.assert_array_equal(
        result.column("teacher_top_ids", "token"), expected.column("teacher_top_ids", "token")
    )
    for name in COLUMNS:
        np.testing.assert_allclose(result.column(name, "token"), expected.column(name, "token"), atol=1e-5)


@pytest.mark.parametrize("prompts", [None, [[40, 41], [40, 41], [42, 43, 44]]])
def test_it_answers_as_the_model_does(
    served: tuple[engine.Vllm, PreTrainedModel], prompts: list[list[int]] | None
) -> None:
    generate, model = served
    batch = rollouts()
    expected = annotate(batch, "teacher_logprob", model, top_k=K, prompts=prompts)
    teacher = TeacherEngine(generate, top_k=K, tokenizer=TOKENIZER)
    for _ in range(2):  # the second time vLLM has cached the prefixes
        agrees(annotate(batch, "teacher_logprob", teacher, top_k=K, prompts=prompts), expected)
    alone = annotate(batch, "teacher_logprob", TeacherEngine(generate), prompts=prompts)
    np.testing.assert_allclose(
        alone.column("teacher_logprob", "token"), expected.column("teacher_logprob", "token"), atol=1e-5
    )


def test_it_follows_the_weights_and_scores_among_requests_that_generate(
    served: tuple[engine.Vllm, PreTrainedModel],
) -> None:
    generate, model = served
    batch, other = rollouts(), tiny(2)
    teacher = TeacherEngine(generate, top_k=K)
    requests = [Request(np.array([1, 2, 3], np.int32), seed, Sampling(max_tokens=40)) for seed in range(4)]
    for follows in (other, model):
        generate.update_weights(follows, version=generate.policy_version + 1)
        segments: list[Segment] = []
        thread = threading.Thread(target=lambda out: out.extend(generate_all(generate, requests)), args=(segments,))
        thread.start()
        agrees(
            annotate(batch, "teacher_logprob", teacher, top_k=K),
            annotate(batch, "teacher_logprob", follows, top_k=K),
        )
        thread.join()
        assert [len(each.tokens) for each in segments] == [40] * 4


def test_scores_of_two_versions_are_refused(
    served: tuple[engine.Vllm, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights end scoring: here between two steps, as soon as the requests have arrived."""
    generate, model = served
    begin = generate._begin

    def interrupted(newcomers: Any) -> Any:
        result = begin(newcomers)
        generate.abort([*newcomers.values()][-1])  # it does not fit into the first step
        return result

    monkeypatch.setattr(generate, "_begin", interrupted)
    with pytest.raises(EngineError, match="annotate the batch again"):
        annotate(rollouts(length=50), "teacher_logprob", TeacherEngine(generate))
    monkeypatch.undo()
    agrees(
        annotate(rollouts(), "teacher_logprob", TeacherEngine(generate, top_k=K), top_k=K),
        annotate(rollouts(), "teacher_logprob", model, top_k=K),
    )


def test_rollouts_and_options_that_a_teacher_cannot_score_are_rejected(
    served: tuple[engine.Vllm, PreTrainedModel],
) -> None:
    generate, _ = served
    with pytest.raises(InvalidInputError, match=r"sampled at temperature 0\.5"):
        annotate(rollouts(0.5), "teacher_logprob", TeacherEngine(generate))
    with pytest.raises(InvalidInputError, match="pass a larger max_model_len"):
        annotate(rollouts(length=61), "teacher_logprob", TeacherEngine(generate))
    with pytest.raises(InvalidInputError, match="top is 21"):
        annotate(rollouts(), "teacher_logprob", TeacherEngine(generate, top_k=21), top_k=21)
    with pytest.raises(InvalidInputError, match="top_k is 0"):
        TeacherEngine(generate, top_k=0)
    with pytest.raises(InvalidInputError, match=r"give an engine\.Vllm"):
        TeacherEngine(TOKENIZER)


def test_another_tokenizer_is_refused(served: tuple[engine.Vllm, PreTrainedModel]) -> None:
    class Other:
        @staticmethod
        def get_vocab() -> dict[str, int]:
            return {text: number + 1 for text, number in TOKENIZER.get_vocab().items()}

    with pytest.raises(InvalidInputError, match="log-probs of another tokenizer's tokens have no meaning"):
        TeacherEngine(served[0], tokenizer=Other())
