"""Annotate: compare log-probs at trained tokens, and probes at every step, with the model's own forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from paths import contexts
from torch import nn
from updates import grow

from agentrl_core import Batch, Forest, annotate, recipes, reward
from agentrl_core.component import Where
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.loss import Train, Value
from agentrl_core.model.pack import Pack, PackOutput
from agentrl_core.model.token_probe import Probe, ProbePacks
from agentrl_core.recipes.igpo import InformationGain


def likelihood(model: nn.Module, context: list[int], probe: list[int], start: int) -> torch.Tensor:
    """Return the log-prob of each scored token after a context."""
    tokens = torch.tensor(context + probe)
    with torch.no_grad():
        logits = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, tokens[1:, None])[len(context) + start - 1 :, 0]


def probe_rows(batch: Batch, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, batch.num_draws)
    rows = [rng.integers(0, 37, length).tolist() for length in lengths]
    return rows, [int(rng.integers(0, length)) for length in lengths]


@pytest.mark.parametrize("max_tokens", [75, 10_000])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("seed", [0, 1])
def test_probes_are_scored_before_every_step_and_at_the_end(seed: int, reduce: str, max_tokens: int) -> None:
    batch, model = grow(seed), tiny_model("qwen3")
    rows, starts = probe_rows(batch, seed)
    probe = Probe(rows, start=starts, reduce=reduce)
    probed = annotate(batch, "answer_logprob", model, probe=probe, max_tokens=max_tokens)
    after, before = probed.column("answer_logprob", "step"), probed.column("answer_logprob_before", "draw")
    steps = batch.offsets("step")
    several = 0
    for draw, draw_contexts in enumerate(contexts(batch)):
        answers = [likelihood(model, context, rows[draw], starts[draw]) for context in draw_contexts]
        expected = [float(answer.mean() if reduce == "mean" else answer.sum()) for answer in answers]
        assert len(expected) == steps[draw + 1] - steps[draw] + 1
        result = [before[draw], *after[steps[draw] : steps[draw + 1]]]
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
        several += len(expected) > 2
    assert several > 3
    packs = list(ProbePacks(batch, probe).packs(max_tokens))
    assert (len(packs) > 1) == (max_tokens == 75)
    assert all(len(tree.input_ids) <= max_tokens for _, tree, _ in packs)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_context_is_run_once_for_all_its_probes() -> None:
    batch = grow(0)
    probe = Probe([[1, 2, 3]] * batch.num_draws)
    ((_, tree, _),) = ProbePacks(batch, probe).packs(10_000)
    contexts_and_probes = {
        (*context, 1, 2)[:length]
        for draw_contexts in contexts(batch)
        for context in draw_contexts
        for length in range(1, len(context) + 3)
    }
    assert len(tree.input_ids) == len(contexts_and_probes)  # every prefix is there once
    by_themselves = sum(len(context) + 2 for draw_contexts in contexts(batch) for context in draw_contexts)
    assert len(tree.input_ids) < 0.6 * by_themselves


def test_information_gain_of_a_probe() -> None:
    batch, model = grow(0), tiny_model("llama")
    rows, starts = probe_rows(batch)
    probed = annotate(batch, "answer_logprob", model, probe=Probe(rows, start=starts))
    recipe = recipes.GRPO.replace(reward=(reward.OutcomeScore(), InformationGain()))
    recipe.check()
    for incomplete in (batch, batch.with_columns("step", answer_logprob=probed.column("answer_logprob", "step"))):
        with pytest.raises(RecipeError, match=r"batch = arl\.annotate\(batch, 'answer_logprob', policy, probe=probe\)"):
            recipe.credit(incomplete)
    gain = recipe.credit(probed).column("gain", "step")
    steps = batch.offsets("step")
    for draw, draw_contexts in enumerate(contexts(batch)):
        likely = [float(likelihood(model, context, rows[draw], starts[draw]).mean().exp()) for context in draw_contexts]
        gains = gain[steps[draw] : steps[draw + 1]]
        np.testing.assert_allclose(gains[:-1], np.diff(likely)[:-1], rtol=0, atol=1e-6)
        assert np.isnan(gains[-1])


def test_a_probe_can_compute_the_entropy() -> None:
    batch, model = grow(0), tiny_model("llama")
    rows = [[5]] * batch.num_draws
    entropies = annotate(batch, "answer_entropy", model, probe=Probe(rows)).column("answer_entropy_before", "draw")
    for draw, draw_contexts in enumerate(contexts(batch)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([draw_contexts[0]])).logits[0, -1]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        assert entropies[draw] == pytest.approx(float(entropy), abs=1e-5)


def test_a_probe_in_an_empty_context_is_nan() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, member=0)
    forest.append(trajectory, [3, 4], kind="action", logprobs=[-1.0, -1.0])
    forest.finish(trajectory, reward=0.0)
    batch, model = forest.freeze(), tiny_model("llama")
    probed = annotate(batch, "answer_logprob", model, probe=Probe([[5]]))
    assert np.isnan(probed.column("answer_logprob_before", "draw")).all()
    after = probed.column("answer_logprob", "step")
    assert after.tolist() == [pytest.approx(float(likelihood(model, [3, 4], [5], 0)[0]), abs=1e-6)]


def test_a_context_that_no_step_follows() -> None:
    """The context at the end of a trajectory whose context was rewritten after its last action."""
    forest = Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member=member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3, 4], kind="action", logprobs=[-1.0, -1.0])
        forest.step(trajectory)
        forest.rewrite(trajectory, [1, 7, 8])
        forest.finish(trajectory, reward=0.0)
    batch, model = forest.freeze(), tiny_model("llama")
    probed = annotate(batch, "answer_logprob", model, probe=Probe([[5], [6]]))
    before, after = probed.column("answer_logprob_before", "draw"), probed.column("answer_logprob", "step")
    for draw, probe in enumerate(([5], [6])):
        assert before[draw] == pytest.approx(float(likelihood(model, [1, 2], probe, 0)[0]), abs=1e-6)
        assert after[draw] == pytest.approx(float(likelihood(model, [1, 7, 8], probe, 0)[0]), abs=1e-6)


def test_probes_that_are_refused() -> None:
    batch, model = grow(0), tiny_model("llama")
    with pytest.raises(InvalidInputError, match=r"start is 2 for tokens\[1\], which has 2 tokens"):
        Probe([[1, 2, 3], [4, 5]], start=2)
    with pytest.raises(InvalidInputError, match=r"tokens\[0\]\[\d+\] is -1"):
        Probe([[-1, 2]])
    with pytest.raises(InvalidInputError, match="reduce='max'; use mean or sum"):
        Probe([[1]], reduce="max")
    with pytest.raises(InvalidInputError, match=r"probe has 1 rows of tokens, but the batch has \d+ draws"):
        annotate(batch, "answer_logprob", model, probe=Probe([[1]]))
    every = Probe([[1, 2]] * batch.num_draws)
    with pytest.raises(
        InvalidInputError, match="max_tokens is 5, but a context of draw 1 with its probe has 14 tokens"
    ):
        annotate(batch, "answer_logprob", model, probe=every, max_tokens=5)
    with pytest.raises(InvalidInputError, match="a probe needs a model that runs packs; give a torch"):
        annotate(batch, "answer_logprob", lambda pack: pack.target, probe=every)


def test_answers_at_trained_tokens() -> None:
    """Log-probs, entropies and sums of squared probabilities of every stored token, whichever draw trains it."""
    batch, model = grow(1), tiny_model("llama")
    names = ("reference_logprob", "current_entropy", "sum_probability_squared")
    annotated = batch
    for name in names:
        annotated = annotate(annotated, name, model, max_tokens=60)
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    trainable, scale = batch.column("trainable", "token"), batch.column("inverse_temperature", "token")
    columns = {name: annotated.column(name, "token") for name in names}
    for draw, draw_contexts in enumerate(contexts(batch)):
        for step in range(steps[draw], steps[draw + 1]):
            rows = range(tokens[step], tokens[step + 1])
            context = draw_contexts[step - steps[draw]]
            inputs = torch.tensor(context + batch.column("token", "token")[list(rows)].tolist())
            with torch.no_grad():
                logits = model(input_ids=inputs[None]).logits[0]
            for place, row in enumerate(rows):
                if not trainable[row]:
                    assert all(np.isnan(columns[name][row]) for name in names)
                    continue
                dist = torch.distributions.Categorical(logits=logits[len(context) + place - 1] * float(scale[row]))
                expected = (dist.log_prob(inputs[len(context) + place]), dist.entropy(), dist.probs.square().sum())
                for name, value in zip(names, expected, strict=True):
                    assert columns[name][row] == pytest.approx(float(value), abs=1e-5), (name, row)


def test_a_stored_token_is_run_once() -> None:
    """A token gets its value whether one draw trains it or several, in tree layouts and in sequence layouts."""
    batch, model = grow(0), tiny_model("llama")
    packs: list[Pack] = []

    def answer(pack: Pack) -> torch.Tensor:
        packs.append(pack)
        return pack.run(model).logprob

    by_function = annotate(batch, "mine", answer, max_tokens=60).column("mine", "node_token")
    by_model = annotate(batch, "reference_logprob", model, max_tokens=60).column("reference_logprob", "node_token")
    np.testing.assert_allclose(by_function, by_model, rtol=0, atol=1e-6)
    run_tokens = torch.cat([pack.node_token for pack in packs]).tolist()
    stored = batch.column("node_token", "token")[batch.column("trainable", "token") == 1]
    assert sorted(run_tokens) == sorted(set(stored.tolist()))
    assert len(run_tokens) < len(stored)
    assert len(packs) > 1
    assert all(pack.subtree_end is None for pack in packs)
    assert np.isfinite(by_model).sum() == len(run_tokens)


def test_a_function_returns_a_value_for_each_pair() -> None:
    batch = grow(0)
    squares = annotate(batch, "square", lambda pack: pack.target.float() ** 2).column("square", "token")
    trained = batch.column("trainable", "token") == 1
    np.testing.assert_array_equal(
        squares[trained], np.square(batch.column("token", "token")[trained], dtype=np.float32)
    )
    assert np.isnan(squares[~trained]).all()
    with pytest.raises(InvalidInputError, match=r"column 'bad' returned shape \(1,\) for a pack of"):
        annotate(batch, "bad", lambda _: torch.zeros(1))


def test_a_column_name_must_end_with_an_output_of_a_model() -> None:
    batch = grow(0)
    with pytest.raises(
        InvalidInputError, match=r"column is 'current_entropie', which does not end with an output of a model; end it"
    ):
        annotate(batch, "current_entropie", tiny_model("llama"))
    with pytest.raises(InvalidInputError, match=r"model is None; give a torch\.nn\.Module, or a function"):
        annotate(batch, "reference_logprob", None)  # type: ignore[arg-type]


def test_only_some_draws_are_run() -> None:
    """Two groups without a shared token: tokens of omitted draws keep their values."""
    forest = Forest()
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(2):
            path = forest.start(group, member)
            forest.append(path, [1, 2], kind="prompt")
            forest.append(path, [3 + member, 5 + group], kind="action", logprobs=[-0.5, -0.1])
            forest.finish(path, reward=float(member))
    batch = forest.freeze()
    counts: list[int] = []

    def answers(pack: Pack) -> torch.Tensor:
        counts.append(len(pack.target))
        return pack.target.float()

    chosen = np.array([True, False, False, True])
    first = annotate(batch, "answer", answers, draws=chosen)
    tokens = np.asarray(batch.column("token", "token"), np.float32).reshape(4, 2)
    values = first.column("answer", "token").reshape(4, 2)
    np.testing.assert_array_equal(values, np.where(chosen[:, None], tokens, np.nan))
    failed = Where(column="reward", at_most=0.0).holds(first)
    second = annotate(first, "answer", lambda pack: answers(pack) + 100.0, draws=failed)
    # Rewards are 0, 1, 0, 1: draws 0 and 2 are run now; draw 3 keeps its value, draw 1 still has none.
    expected = np.stack([tokens[0] + 100, [np.nan] * 2, tokens[2] + 100, tokens[3]])
    np.testing.assert_array_equal(second.column("answer", "token").reshape(4, 2), expected)
    assert counts == [4, 4]
    for wrong in ([0, 1], [True], np.ones((4, 1), bool)):
        with pytest.raises(InvalidInputError, match="give a bool for each of the 4 draws"):
            annotate(batch, "answer", answers, draws=wrong)  # type: ignore[arg-type]


def test_a_critic_of_steps_is_read_and_trained_before_each_action() -> None:
    """One value per step, at the prediction of its first token: the loss has a row for each, and no other.

    Values 0.1 (context ends in 2) and 0.4 (in 5), targets 1 and 0.5: (0.9^2 + 0.1^2) / 2 / 2 in the mean of steps.
    """
    forest = Forest()
    forest.add_group(0, "task")
    path = forest.start(0, 0)
    for context, action in ([1, 2], [3, 4, 6]), ([7, 5], [8]):
        forest.append(path, context, kind="observation" if action == [8] else "prompt")
        forest.append(path, action, kind="action", logprobs=[-0.5] * len(action))
        forest.step(path)
    forest.finish(path, reward=1.0)
    batch = forest.freeze()

    def last(pack: Pack) -> torch.Tensor:
        """Return a tenth of the last token before the prediction."""
        return (pack.input_ids[pack.source_row].float() - 1.0) / 10.0

    annotated = annotate(batch, "value", last, level="step")
    assert annotated.column("value", "step").tolist() == pytest.approx([0.1, 0.4])
    critic = Train(Value("token_mean", level="step"), model="critic")
    targets = annotated.with_columns("step", **{"return": np.array([1.0, 0.5], np.float32)})
    recipe = recipes.PPO.replace(loss=critic, epochs=1)
    updates = recipe.updates(targets.with_columns("draw", score=[1.0], advantage=[1.0]))
    total = 0.0
    for update in updates:
        for pack in update.pack(max_tokens=64):
            trained = pack.streams.weight_kl > 0
            assert pack.target[trained].tolist() == [3, 8]
            value = last(pack)
            outputs = PackOutput(torch.zeros_like(value), torch.zeros_like(value), value=value)
            total += update.loss(outputs, pack).item()
    assert total == pytest.approx((0.9**2 + 0.1**2) / 4)
    assert Value(level="step").of_steps
    assert not Value().of_steps
    with pytest.raises(InvalidInputError, match="level is 'turn'; give 'node_token', 'step' or 'draw'"):
        annotate(batch, "value", last, level="turn")  # type: ignore[arg-type]
