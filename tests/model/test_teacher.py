"""Teachers: compare their likeliest tokens and log-probs under other prompts with their own forward; use in a loss."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from forests import grow as stored
from hand_made import VOCABULARY, tiny_model
from paths import contexts
from torch import Tensor, nn
from updates import grow

from agentrl_core import Batch, Forest, Store, annotate, loss, recipes, scan
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.pack import Pack, Streams
from agentrl_core.recipe import Recipe

K = 5


def distribution(model: nn.Module, context: list[int], scale: float) -> Tensor:
    with torch.no_grad():
        return (model(input_ids=torch.tensor([context])).logits[0, -1].double() * scale).log_softmax(-1)


def rollouts(rewards: tuple[float, ...] = (1.0, 1.0)) -> Batch:
    """Return a group whose rollouts share a prompt and, two of them, a first action; a tool answers between turns."""
    forest = Forest()
    forest.add_group(0, "task")
    one = forest.start(0, member=0)
    forest.append(one, [1, 2, 3], kind="prompt")
    node = forest.append(one, [4, 5], kind="action", logprobs=[-0.5, -0.25], temperature=0.8)
    forest.append(one, [6, 7, 8], kind="observation")
    two = forest.fork(one, node=node, end=2)
    forest.append(one, [9, 10], kind="action", logprobs=[-0.5, -1.0])
    forest.append(two, [11], kind="observation")
    forest.append(two, [12, 13, 14], kind="action", logprobs=[-2.0, -1.0, -0.5])
    for trajectory, reward in zip((one, two), rewards, strict=True):
        forest.finish(trajectory, reward=reward)
    forest.add_group(1, "other")
    last = forest.start(1, member=0)
    forest.append(last, [15, 16], kind="prompt")
    forest.append(last, [17, 18], kind="action", logprobs=[-1.0, -1.0])
    forest.finish(last, reward=0.0)
    return forest.freeze()


@pytest.mark.parametrize(("layout", "max_tokens"), [("auto", 10_000), ("auto", 60), ("sequence", 60), ("padded", 60)])
def test_likeliest_tokens_are_those_of_the_model(layout: str, max_tokens: int) -> None:
    batch, model = grow(0), tiny_model("qwen3").eval()
    batch = annotate(batch, "teacher_logprob", model, top_k=K, layout=layout, max_tokens=max_tokens)
    ids, top = batch.column("teacher_top_ids", "token"), batch.column("teacher_top_logprobs", "token")
    token_logprobs, tokens = batch.column("teacher_logprob", "token"), batch.column("token", "token")
    scale, trained = batch.column("inverse_temperature", "token"), batch.column("trainable", "token")
    offsets, steps = batch.offsets("token"), batch.offsets("step")
    checked = 0
    for draw, draw_contexts in enumerate(contexts(batch)):
        for context, step in zip(draw_contexts, range(steps[draw], steps[draw + 1]), strict=False):
            for place in range(offsets[step], offsets[step + 1]):
                if not trained[place]:
                    continue
                before = context + tokens[offsets[step] : place].tolist()
                logprobs = distribution(model, before, float(scale[place]))
                expected = logprobs.topk(K)
                assert ids[place].tolist() == expected.indices.tolist()
                np.testing.assert_allclose(top[place], expected.values, atol=1e-5)
                assert token_logprobs[place] == pytest.approx(float(logprobs[tokens[place]]), abs=1e-5)
                checked += 1
    assert checked > 40
    assert (ids[trained == 0] == -1).all()
    assert np.isnan(top[trained == 0]).all()
    plain = annotate(batch, "reference_logprob", model, layout=layout, max_tokens=max_tokens)
    assert np.array_equal(token_logprobs, plain.column("reference_logprob", "token"), equal_nan=True)


def test_columns_go_through_store_and_polars_to_the_same_packs(tmp_path: Path) -> None:
    recipe, teacher = distil(), tiny_model(vocab_size=1000).eval()
    credited, folder = [], tmp_path / "store"
    with closing(Store.open(folder)) as store:
        for iteration, count in enumerate((K, K, 3)):  # files with other widths, merged below
            batch = store.rebase(
                annotate(stored(iteration, iteration=iteration)[0], "teacher_logprob", teacher, top_k=count)
            )
            store.append(batch, iteration=iteration)
            credited.append(recipe.credit(batch))
            store.close_iteration(credited[-1], {})
        store.compact()
    with closing(Store.open(folder)) as store:
        loaded = [store.batch(iteration) for iteration in range(3)]
        assert store.verify() == []
    for back, batch in zip(loaded, credited, strict=True):
        for name in ("teacher_top_ids", "teacher_top_logprobs"):
            loaded_column, column = (each.column(name, "node_token") for each in (back, batch))
            assert loaded_column.dtype == column.dtype
            assert np.array_equal(loaded_column, column, equal_nan=column.dtype.kind == "f")
    batch, loaded_batch = credited[0], loaded[0]
    nodes = pl.read_ipc(min((folder / "node_columns").glob("*.arrow")))
    assert nodes.schema["teacher_top_ids"] == pl.List(pl.Array(pl.Int32, K))
    assert nodes.schema["teacher_top_logprobs"] == pl.List(pl.Array(pl.Float32, K))
    flat = nodes["teacher_top_ids"].explode().drop_nulls().to_numpy()
    column = np.concatenate([each.column("teacher_top_ids", "node_token") for each in credited[:2]])
    assert np.array_equal(flat, column)
    ((one,), (other,)) = (recipe.updates(each) for each in (batch, loaded_batch))
    for mine, theirs in zip(one.pack(max_tokens=80), other.pack(max_tokens=80), strict=True):
        assert mine.streams.teacher_top_ids.dtype == torch.int64
        assert mine.streams.teacher_top_ids.shape == (len(mine.target), K)
        for name, values in mine.streams.items():
            assert torch.equal(values, theirs.streams[name]), name


def test_polars_expressions_read_the_columns(tmp_path: Path) -> None:
    batch = annotate(rollouts(), "teacher_logprob", tiny_model().eval(), top_k=K)
    batch = recipes.GRPO.credit(batch)
    with closing(Store.open(tmp_path / "store")) as store:
        store.append(batch, iteration=0)
        store.close_iteration(batch, {})
    lists = scan(tmp_path / "store").node_columns.select(pl.col("teacher_top_logprobs").explode())
    sums = lists.select(pl.col("teacher_top_logprobs").arr.to_list().list.eval(pl.element().exp()).list.sum()).collect()
    covered = np.exp(batch.column("teacher_top_logprobs", "node_token")).sum(axis=1)
    np.testing.assert_allclose(sums.to_series().to_numpy(), covered, rtol=1e-5)


def gradients(model: nn.Module, batch: Batch, recipe: Recipe, **options: object) -> tuple[float, list[Tensor], dict]:
    model.zero_grad()
    teacher, layout = options.get("teacher"), options.get("layout", "auto")
    updates = recipe.updates(batch)
    total = 0.0
    for update in updates:
        if options.get("cached"):
            values = update.gradient_cached(lambda pack: pack.run(model, teacher=teacher), max_tokens=40)
        else:
            packs = update.pack(max_tokens=int(options.get("max_tokens", 10_000)), layout=layout, model=model)
            values = (update.loss(pack.run(model, teacher=teacher), pack) for pack in packs)
        for value in values:
            value.backward()
            total += float(value.detach())
    return total, [parameter.grad.clone() for parameter in model.parameters()], updates.metrics


def distil(**options: object) -> Recipe:
    return Recipe(name="distil", advantage=recipes.GRPO.advantage, loss=loss.Divergence(**options))


def test_a_teacher_may_answer_for_the_policys_likeliest_tokens() -> None:
    """Compare reverse KL on the policy's top k, all other tokens as one bin, with whole distributions."""
    student, teacher = tiny_model(seed=1).eval(), tiny_model(seed=2).eval()
    batch = annotate(rollouts(), "policy_logprob", student, top_k=K)
    ids = torch.from_numpy(batch.column("policy_top_ids", "node_token")).long()

    def at_tokens_of_policy(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
        policy_ids = ids[pack.node_token]
        extended = replace(pack, streams=Streams({**pack.streams, "own": policy_ids}))
        answer = extended.run(teacher, outputs=("top_logprobs:own",))
        assert answer.top_logprobs is not None
        return answer.logprob, policy_ids, answer.top_logprobs[:, :K]

    batch = annotate(batch, "teacher_logprob", at_tokens_of_policy, top_k=K)
    updates = distil(support="top", beta=1.0).updates(batch)
    (update,) = updates
    for pack in update.pack(max_tokens=10_000, layout="sequence"):  # a pair for each draw that trains a token
        update.loss(pack.run(student), pack).backward()
    expected, covered = [], []
    scale = batch.column("inverse_temperature", "token")
    tokens, offsets, steps = batch.column("token", "token"), batch.offsets("token"), batch.offsets("step")
    for draw, draw_contexts in enumerate(contexts(batch)):
        for context, step in zip(draw_contexts, range(steps[draw], steps[draw + 1]), strict=False):
            for place in range(offsets[step], offsets[step + 1]):
                before = context + tokens[offsets[step] : place].tolist()
                p, q = (distribution(model, before, float(scale[place])).exp() for model in (student, teacher))
                top = p.topk(K).indices
                p, q = (torch.cat([each[top], 1 - each[top].sum()[None]]) for each in (p, q))
                expected.append(float((p * (p / q).log()).sum()))
                covered.append(float(q[:-1].sum()))
    assert len(expected) > 5
    assert updates.metrics["divergence"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert updates.metrics["coverage"] == pytest.approx(np.mean(covered), rel=1e-4)


@pytest.mark.parametrize(
    ("support", "beta"), [*itertools.product(("top", "vocabulary"), (0.0, 0.5, 1.0)), ("sampled", 1.0)]
)
def test_a_pack_has_the_gradient_of_plain_forwards(support: str, beta: float) -> None:
    """Compare trees, sequences, padded rows, small packs and cached gradients with each token's own divergence."""
    student, teacher = tiny_model(seed=1).eval(), tiny_model(seed=2).eval()
    batch = annotate(rollouts(), "teacher_logprob", teacher, top_k=VOCABULARY)
    recipe = distil(support=support, beta=beta)
    batch = recipe.credit(batch)

    student.zero_grad()
    terms, tokens = [], batch.column("token", "token")
    offsets, steps, scale = batch.offsets("token"), batch.offsets("step"), batch.column("inverse_temperature", "token")
    for draw, draw_contexts in enumerate(contexts(batch)):
        for context, step in zip(draw_contexts, range(steps[draw], steps[draw + 1]), strict=False):
            for place in range(offsets[step], offsets[step + 1]):
                before = torch.tensor([context + tokens[offsets[step] : place].tolist()])
                p = (student(input_ids=before).logits[0, -1] * float(scale[place])).log_softmax(-1)
                q = (teacher(input_ids=before).logits[0, -1] * float(scale[place])).log_softmax(-1).detach()
                m = torch.logaddexp(p + np.log1p(-0.5), q + np.log(0.5))
                if support == "sampled":
                    log_ratio = (p - q)[tokens[place]]
                    terms.append(log_ratio.detach() * (1 + p[tokens[place]] - p[tokens[place]].detach()))
                elif beta == 0.5:
                    terms.append(0.5 * (q.exp() * (q - m)).sum() + 0.5 * (p.exp() * (p - m)).sum())
                else:
                    terms.append((q.exp() * (q - p)).sum() if beta == 0.0 else (p.exp() * (p - q)).sum())
    expected = torch.stack(terms).mean()
    expected.backward()
    expected_gradients = [parameter.grad.clone() for parameter in student.parameters()]
    tolerance = 2e-6  # columns of the batch are float32
    for options in (
        {"layout": "tree"},
        {"layout": "sequence", "max_tokens": 13},
        {"layout": "padded"},
        {"layout": "auto", "cached": True},
    ):
        value, result, metrics = gradients(student, batch, recipe, teacher=teacher, **options)
        assert value == pytest.approx(expected.item(), abs=tolerance), options
        for mine, theirs in zip(result, expected_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
        if options["layout"] == "sequence":  # a row for each token; in other layouts branches share some
            name = "teacher_kl" if support == "sampled" else "divergence"
            assert metrics[name] == pytest.approx(expected.item(), abs=tolerance)


def test_logits_in_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large vocabularies are compared a few rows at a time, and again in the backward pass."""
    from agentrl_core.model import output_layer, pack_forward

    student, teacher = tiny_model(seed=1).eval(), tiny_model(seed=2).eval()
    batch = annotate(rollouts(), "teacher_logprob", teacher, top_k=K)
    for support in ("vocabulary", "top"):
        recipe = distil(support=support)
        at_once = gradients(student, recipe.credit(batch), recipe, teacher=teacher)
        for module in (output_layer, pack_forward):
            monkeypatch.setattr(module, "LOGITS_AT_ONCE", 3 * VOCABULARY)
        parts = gradients(student, recipe.credit(batch), recipe, teacher=teacher)
        monkeypatch.undo()
        assert parts[0] == pytest.approx(at_once[0], abs=1e-12)
        for mine, theirs in zip(parts[1], at_once[1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("support", ["top", "vocabulary", "sampled"])
def test_equal_rewards_leave_the_teacher_its_gradient(support: str) -> None:
    """If all rewards are equal, a policy loss alone has no gradient; with the divergence added, every token is run."""
    student, teacher = tiny_model(seed=1).eval(), tiny_model(seed=2).eval()
    batch = annotate(rollouts((0.0, 0.0)), "teacher_logprob", teacher, top_k=K)
    distilling = loss.Divergence(support=support, beta=1.0)
    both = recipes.GRPO.replace(loss=loss.Sum(loss.Policy(), distilling, 1.0, 0.3))
    alone = recipes.GRPO.replace(loss=distilling)
    one, two = (gradients(student, recipe.credit(batch), recipe, teacher=teacher) for recipe in (both, alone))
    assert one[2]["tokens"] == two[2]["tokens"] > 0
    assert "idle_tokens" not in one[2]
    assert max(float(gradient.abs().max()) for gradient in one[1]) > 1e-3
    for mine, theirs in zip(one[1], two[1], strict=True):
        torch.testing.assert_close(mine, 0.3 * theirs, rtol=0, atol=1e-9)


def test_policy_gradient_and_divergence_add_up() -> None:
    student, teacher = tiny_model(seed=1).eval(), tiny_model(seed=2).eval()
    batch = annotate(rollouts((1.0, 0.0)), "teacher_logprob", teacher, top_k=K)
    parts = (loss.Policy(), loss.Divergence())
    recipe = recipes.GRPO.replace(loss=loss.Sum(*parts, 1.0, 0.5))
    both = gradients(student, recipe.credit(batch), recipe)
    each = [
        gradients(student, batch_of, alone)
        for alone in (recipe.replace(loss=part) for part in parts)
        for batch_of in [recipe.credit(batch)]
    ]
    for index, mine in enumerate(both[1]):
        torch.testing.assert_close(mine, each[0][1][index] + 0.5 * each[1][1][index], rtol=0, atol=1e-9)


def test_a_teacher_reads_another_prompt() -> None:
    """Its log-probs are those of its forward under that prompt, including tool results and shared actions."""
    batch, model = rollouts(), tiny_model("qwen3").eval()
    prompts = [[20, 21, 22, 23, 1, 2], [20, 21, 22, 23, 1, 2], [30]]
    for max_tokens in (10_000, 14):
        annotated = annotate(batch, "teacher_logprob", model, top_k=K, prompts=prompts, max_tokens=max_tokens)
        token_logprobs, top = (
            annotated.column("teacher_logprob", "token"),
            annotated.column("teacher_top_logprobs", "token"),
        )
        tokens, offsets, steps = batch.column("token", "token"), batch.offsets("token"), batch.offsets("step")
        scale = batch.column("inverse_temperature", "token")
        old = [3, 3, 2]
        checked = 0
        for draw, draw_contexts in enumerate(contexts(batch)):
            for context, step in zip(draw_contexts, range(steps[draw], steps[draw + 1]), strict=False):
                for place in range(offsets[step], offsets[step + 1]):
                    before = prompts[draw] + context[old[draw] :] + tokens[offsets[step] : place].tolist()
                    logprobs = distribution(model, before, float(scale[place]))
                    assert token_logprobs[place] == pytest.approx(float(logprobs[tokens[place]]), abs=1e-5)
                    np.testing.assert_allclose(top[place], logprobs.topk(K).values, atol=1e-5)
                    checked += 1
        assert checked == 11
    same = annotate(batch, "teacher_logprob", model, prompts=[[1, 2, 3], [1, 2, 3], [15, 16]])
    plain = annotate(batch, "teacher_logprob", model)
    np.testing.assert_allclose(
        same.column("teacher_logprob", "token"), plain.column("teacher_logprob", "token"), atol=1e-6
    )


def test_branches_with_different_prompts_are_refused() -> None:
    batch, model = rollouts(), tiny_model().eval()
    with pytest.raises(InvalidInputError, match="draws 0 and 1 share a sampled token"):
        annotate(batch, "teacher_logprob", model, prompts=[[20], [21], [22]])
    with pytest.raises(InvalidInputError, match="prompts has 1 rows"):
        annotate(batch, "teacher_logprob", model, prompts=[[20]])
    with pytest.raises(InvalidInputError, match=r"prompts\[2\] is empty"):
        annotate(batch, "teacher_logprob", model, prompts=[[20], [20], []])
    with pytest.raises(InvalidInputError, match="max_tokens is 5"):
        annotate(batch, "teacher_logprob", model, prompts=[[20], [20], [21]], max_tokens=5)
    several = grow(0)
    with pytest.raises(UnsupportedError, match="several contexts"):
        annotate(several, "teacher_logprob", model, prompts=[[20]] * several.num_draws)


def test_teachers_by_domain() -> None:
    """Each teacher makes the values of its own draws; together they fill one column."""
    batch, teachers = rollouts(), [tiny_model(seed=seed).eval() for seed in (2, 3)]
    of_first = np.array([True, True, False])
    by_teacher = [annotate(batch, "teacher_logprob", teacher, top_k=K) for teacher in teachers]
    mixed = annotate(batch, "teacher_logprob", teachers[0], top_k=K, draws=of_first)
    assert np.isnan(mixed.column("teacher_logprob", "token")[-2:]).all()
    mixed = annotate(mixed, "teacher_logprob", teachers[1], top_k=K, draws=~of_first)
    for name in ("teacher_logprob", "teacher_top_ids", "teacher_top_logprobs"):
        column = mixed.column(name, "token")
        np.testing.assert_array_equal(column[:-2], by_teacher[0].column(name, "token")[:-2])
        np.testing.assert_array_equal(column[-2:], by_teacher[1].column(name, "token")[-2:])
    with pytest.raises(InvalidInputError, match="give top_k=5"):
        annotate(mixed, "teacher_logprob", teachers[1], top_k=K + 1, draws=~of_first)


def test_a_token_without_an_answer_is_refused_in_training() -> None:
    batch, teacher = rollouts(), tiny_model().eval()
    batch = annotate(batch, "teacher_logprob", teacher, top_k=K, draws=np.array([True, True, False]))
    for support in ("top", "sampled"):
        recipe = distil(support=support, beta=1.0)
        with pytest.raises(InvalidInputError, match=r"teacher_.* is nan at trained token"):
            list(next(iter(recipe.updates(recipe.credit(batch)))).pack(max_tokens=100))


def test_a_function_may_be_the_teacher() -> None:
    def teacher(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
        count = len(pack.target)
        return (
            torch.full((count,), -1.0),
            torch.arange(2).repeat(count, 1),
            torch.log(torch.tensor([[0.5, 0.25]])).repeat(count, 1),
        )

    annotated = annotate(rollouts(), "teacher_logprob", teacher, top_k=2)
    assert annotated.column("teacher_top_ids", "token").tolist() == [[0, 1]] * 11
    with pytest.raises(InvalidInputError, match="returned Tensor with top_k=2; return a tuple of three arrays"):
        annotate(rollouts(), "teacher_logprob", lambda pack: pack.target, top_k=2)
    with pytest.raises(InvalidInputError, match="top_k=3"):
        annotate(rollouts(), "teacher_logprob", teacher, top_k=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": True}, "top_k is True"),
        ({"top_k": 2, "level": "step"}, "level 'step' with top_k=2"),
        ({"top_k": 2, "column": "teacher_entropy"}, "teacher_entropy"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    column = str(options.pop("column", "teacher_logprob"))
    with pytest.raises(InvalidInputError, match=message):
        annotate(rollouts(), column, tiny_model(), **options)  # type: ignore[arg-type]


def test_another_tokenizer_is_refused() -> None:
    policy, other = (
        SimpleNamespace(get_vocab=lambda words=words: dict(words)) for words in ({"a": 0, "b": 1}, {"b": 0, "a": 1})
    )
    larger = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1, "c": 2})
    model = tiny_model().eval()
    annotate(rollouts(), "teacher_logprob", model, tokenizers=(policy, larger))
    with pytest.raises(InvalidInputError, match="token 0 is 'a', which the teacher's tokenizer has as token 1"):
        annotate(rollouts(), "teacher_logprob", model, tokenizers=(policy, other))


def test_models_of_other_vocabularies_are_refused() -> None:
    student, teacher = tiny_model(seed=1), tiny_model(seed=2, vocab_size=VOCABULARY + 3).eval()
    recipe = distil(support="vocabulary")
    batch = recipe.credit(rollouts())
    with pytest.raises(InvalidInputError, match="it has 40 logits and the model has 37"):
        gradients(student, batch, recipe, teacher=teacher)
    with pytest.raises(InvalidInputError, match="no teacher is given"):
        gradients(student, batch, recipe)
    ids = np.full((len(batch.column("token", "node_token")), 2), VOCABULARY + 1, np.int32)
    batch = batch.with_columns(
        "node_token", teacher_top_ids=ids, teacher_top_logprobs=np.log(np.full(ids.shape, 0.4, np.float32))
    )
    recipe = distil()
    with pytest.raises(InvalidInputError, match="teacher_top_ids"):
        gradients(student, recipe.credit(batch), recipe)
