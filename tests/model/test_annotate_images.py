"""Probes and other prompts of rollouts with images equal the model's plain forward of each context alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from shown_rollouts import ACTION, node_paths, plain_logits, rollouts
from torch import Tensor
from vision_models import build, screenshot

from agentrl_core import Batch, Forest, annotate
from agentrl_core.engine import Chat
from agentrl_core.engine.teacher_server import TeacherServer
from agentrl_core.env import Image
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.context_images import ContextImages
from agentrl_core.model.images import image_token
from agentrl_core.model.pack import Pack
from agentrl_core.model.token_probe import Probe, ProbePacks

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILY = pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "gemma3"])
BEFORE, AFTER = screenshot(5), screenshot(6)  # of one size


class Context(NamedTuple):
    """All inputs that a model has read: tokens, and the contents of images in order."""

    tokens: list[int]
    images: list[bytes]

    def then(self, tokens: list[int], images: list[bytes]) -> Context:
        return Context(self.tokens + tokens, self.images + images)


def contexts_of_draws(batch: Batch) -> list[list[Context]]:
    """Return for each draw its context before each action node, and the whole; no node is cut."""
    result = []
    for path in node_paths(batch):
        context, before = Context([], []), []
        for node in path:
            before += [context] if node["kind"] == ACTION else []
            context = context.then(node["tokens"], list(map(batch.blob, node["blobs"] or [])))
        result.append([*before, context])
    return result


def logprobs(model: Any, processor: Any, context: Context, tokens: list[int], scale: float = 1.0) -> Tensor:
    """Return the log-prob of each of some tokens after a context."""
    with torch.no_grad():
        logits = plain_logits(model, processor, context.tokens + tokens, context.images)
    rows = (logits[len(context.tokens) - 1 : -1] * scale).log_softmax(-1)
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def look(images: list[Image], end: Image | None = None) -> Batch:
    """Return a draw for each image; draws differ only in it, and `end` comes after the actions of all."""
    chat, forest = Chat(build("smolvlm")[1]), Forest()
    forest.add_group(0, "look")
    for member, image in enumerate(images):
        trajectory = forest.start(0, member)
        prompt = chat.prompt([{"role": "user", "content": ["See ", image, "?"]}])
        forest.append(trajectory, prompt, kind="prompt", blobs=[forest.add_blob(image.content)])
        forest.append(trajectory, [11, 12], kind="action", logprobs=[-1.0, -1.0])
        if end is not None:
            last = chat.observation([{"role": "tool", "content": ["Now ", end]}])
            forest.append(trajectory, last, kind="observation", blobs=[forest.add_blob(end.content)])
        forest.finish(trajectory, reward=float(member))
    return forest.freeze()


@FAMILY
@pytest.mark.parametrize("whole", [True, False])
def test_probes_see_the_images_before_them(family: str, whole: bool) -> None:
    model, processor = build(family)
    batch = rollouts(processor)
    rows = [[20 + draw, 30, 40 + draw] for draw in range(batch.num_draws)]
    contexts = contexts_of_draws(batch)
    longest = max(len(context.tokens) for of_draw in contexts for context in of_draw) + 2
    probe, most = Probe(rows, start=1), 4096 if whole else longest
    annotated = annotate(batch, "answer_logprob", model, probe=probe, processor=processor, max_tokens=most)
    steps = batch.offsets("step")
    for draw, of_draw in enumerate(contexts):
        expected = [float(logprobs(model, processor, each, rows[draw])[1:].mean()) for each in of_draw]
        after = annotated.column("answer_logprob", "step")[steps[draw] : steps[draw + 1]]
        before = annotated.column("answer_logprob_before", "draw")[draw]
        np.testing.assert_allclose([before, *after], expected, rtol=0, atol=1e-5)
    assert {len(each.images) for of_draw in contexts for each in of_draw} > {0, 2}
    packs = list(ProbePacks(batch, probe, ContextImages.of(batch, processor)).packs(most))
    assert (len(packs) == 1) == whole
    assert all(len(pack.input_ids) <= most for pack, _, _ in packs)


@FAMILY
def test_other_prompts_keep_their_images(family: str) -> None:
    model, processor = build(family)
    batch = rollouts(processor)
    hints = [[50, 51], [52], [52], [53], [54, 55, 56]]  # the second and third share an action
    prompts = [hint + of_draw[0].tokens for hint, of_draw in zip(hints, contexts_of_draws(batch), strict=True)]
    annotated = annotate(batch, "teacher_logprob", model, prompts=prompts, top_k=3, processor=processor, max_tokens=300)
    answers, tokens = annotated.column("teacher_logprob", "token"), batch.column("token", "token")
    likeliest = annotated.column("teacher_top_logprobs", "token")
    offsets, steps = batch.offsets("token"), batch.offsets("step")
    scale = batch.column("inverse_temperature", "token")
    for draw, of_draw in enumerate(contexts_of_draws(batch)):
        for context, step in zip(of_draw, range(steps[draw], steps[draw + 1]), strict=False):
            place = slice(offsets[step], offsets[step + 1])
            hinted = Context(hints[draw] + context.tokens, context.images)
            expected = logprobs(model, processor, hinted, tokens[place].tolist(), float(scale[place][0]))
            np.testing.assert_allclose(answers[place], expected, rtol=0, atol=1e-5)
    assert np.isfinite(likeliest).all()
    plain = annotate(batch, "teacher_logprob", model, processor=processor).column("teacher_logprob", "token")
    assert np.abs(plain - answers).max() > 1e-3, "hints count"


def test_equal_tokens_with_other_images_are_other_contexts() -> None:
    model, processor = build("smolvlm")
    batch = look([BEFORE, AFTER, BEFORE])
    rows, (first, second, third) = [[7, 8]] * 3, contexts_of_draws(batch)
    assert first[0].tokens == second[0].tokens
    annotated = annotate(batch, "answer_logprob", model, probe=Probe(rows), processor=processor)
    before = annotated.column("answer_logprob_before", "draw")
    expected = [float(logprobs(model, processor, each[0], [7, 8]).mean()) for each in (first, second, third)]
    np.testing.assert_allclose(before, expected, rtol=0, atol=1e-5)
    assert before[0] == before[2] != before[1]
    packs: list[Pack] = []

    def recording(pack: Pack) -> Tensor:
        packs.append(pack)
        return pack.run(model).logprob

    prompts = [[9, *each[0].tokens] for each in (first, second, third)]
    for answerer in (recording, model):
        annotated = annotate(batch, "teacher_logprob", answerer, prompts=prompts, processor=processor)
        answers = annotated.column("teacher_logprob", "token").reshape(3, 2)
        for draw, (context, _) in enumerate((first, second, third)):
            hinted = Context(prompts[draw], context.images)
            np.testing.assert_allclose(answers[draw], logprobs(model, processor, hinted, [11, 12]), rtol=0, atol=1e-5)
    (pack,) = packs
    assert len(pack.cu_seqlens) == 3, "equal tokens with equal images are one sequence"
    assert pack.images is not None
    assert set(pack.images.hashes) == {BEFORE.sha256, AFTER.sha256}
    assert pack.images.sequence.tolist() == [0, 1]
    assert int((pack.input_ids == image_token(model)).sum()) == 2 * first[0].tokens.count(image_token(model))


def test_a_final_probe_reads_the_observation_after_the_last_action() -> None:
    model, processor = build("smolvlm")
    forest, batch = Forest(), look([BEFORE], end=AFTER)
    annotated = annotate(batch, "answer_logprob", model, probe=Probe([[7]]), processor=processor)
    (before, end) = contexts_of_draws(batch)[0]
    assert len(end.images) == 2
    assert annotated.column("answer_logprob_before", "draw")[0] == pytest.approx(
        float(logprobs(model, processor, before, [7])[0]), abs=1e-5
    )
    assert annotated.column("answer_logprob", "step")[0] == pytest.approx(
        float(logprobs(model, processor, end, [7])[0]), abs=1e-5
    )
    forest.add_group(0, "text first")
    trajectory = forest.start(0, 0)
    forest.append(trajectory, [5, 6], kind="prompt")
    forest.append(trajectory, [11], kind="action", logprobs=[-1.0])
    tokens = Chat(processor).observation([{"role": "tool", "content": ["Now ", AFTER]}])
    forest.append(trajectory, tokens, kind="observation", blobs=[forest.add_blob(AFTER.content)])
    forest.finish(trajectory, reward=0.0)
    batch = forest.freeze()
    annotated = annotate(batch, "answer_logprob", model, probe=Probe([[7]]), processor=processor)
    ((_, end),) = contexts_of_draws(batch)
    assert annotated.column("answer_logprob", "step")[0] == pytest.approx(
        float(logprobs(model, processor, end, [7])[0]), abs=1e-5
    )


def test_unsupported_annotations_of_images_are_rejected() -> None:
    model, processor = build("smolvlm")
    batch = look([BEFORE, AFTER])
    ((context, _), _) = contexts_of_draws(batch)
    token, prompts = image_token(model), [context.tokens, [*context.tokens, image_token(model)]]
    count = context.tokens.count(token)
    with pytest.raises(
        InvalidInputError,
        match=rf"prompts\[1\] has {count + 1} image tokens \(id {token}\), but the prompt that it replaces has {count}",
    ):
        annotate(batch, "teacher_logprob", model, prompts=prompts, processor=processor)
    annotate(batch, "teacher_logprob", model, prompts=prompts, processor=processor, draws=np.array([True, False]))
    for arguments in ({}, {"prompts": [context.tokens] * 2}):
        with pytest.raises(UnsupportedError, match="would score their placeholders without them; give the"):
            annotate(batch, "teacher_logprob", TeacherServer("http://127.0.0.1:9"), processor=processor, **arguments)  # type: ignore[arg-type]
    for layout in ("tree", "sequence"):
        for options in ({"prompts": prompts[:1] * 2}, {"probe": Probe([[7]] * 2)}):
            with pytest.raises(UnsupportedError, match=f"layout: '{layout}' cannot run images"):
                annotate(batch, "teacher_logprob", model, layout=layout, processor=processor, **options)
