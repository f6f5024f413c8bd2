"""The transformers engine processes images like the model's own forward, whatever requests share."""

import asyncio
import functools
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from looking import SAMPLING, agrees, looking, outcomes, pictures
from PIL import Image as Picture
from vision_models import build, screenshot

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.env import Image
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

FAMILIES = ["qwen2_5_vl", "smolvlm", "idefics3", "gemma3", "qwen3_vl"]


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_equal_those_of_the_models_forward_pass(family):
    model, processor = build(family)
    generate = engine.Transformers(model, processor)
    one, two, three, four = pictures(1, 2, 3, 4)
    long = "Look at this page, and tell what is on it, please. " * 2
    warm = Sampling(temperature=0.7, max_tokens=6)
    requests = [
        looking(generate, ["a", "b"], [one], 0),
        looking(generate, ["a", "b"], [one], 1, warm),  # the same prompt
        looking(generate, ["a", "b"], [two], 2),  # as long, or longer, with another image
        looking(generate, [long, "one", "two"], [one, two], 3),
        looking(generate, [long, "one", "two"], [two, one], 4),
        looking(generate, [long, "one", "two!"], [one, two], 5),
        looking(generate, ["no image, but a text that is rather long"], [], 6),
        looking(generate, ["", "", "", "."], [one, three, four], 7),
        looking(generate, ["", "", "", "."], [four, four, one], 8, warm),
    ]
    first = generate_all(generate, requests)
    agrees(model, processor, requests, first)
    later = []
    for place, (request, segment) in enumerate(zip(requests, first, strict=True)):
        more = pictures(5 + place % 2, 4)[: place % 3]
        turn = generate.chat.observation([{"role": "user", "content": ["Now:", *more, "and?"]}])
        tokens = np.concatenate([request.tokens, segment.tokens, turn]).astype(np.int32)
        later += [Request(tokens, 20 + place, SAMPLING, images=(*request.images, *more))]
    second = generate_all(generate, later)
    assert all(
        segment.cached_tokens > len(request.tokens) - 1 for request, segment in zip(requests, second, strict=True)
    )
    agrees(model, processor, later, second)


@pytest.mark.parametrize("family", [*FAMILIES[:2], "gemma3"])
def test_equal_tokens_with_other_images_share_nothing_of_them(family):
    model, processor = build(family)
    one, other = screenshot(1), screenshot(2)
    alone = [
        generate_all(generate, [looking(generate, ["What?" * 20, "?"], [image], 3)])[0]
        for generate in [engine.Transformers(model, processor, prefix_cache_bytes=0) for _ in range(2)]
        for image in (one, other)
    ]
    generate = engine.Transformers(model, processor)
    requests = [looking(generate, ["What?" * 20, "?"], [image], 3) for image in (one, other)]
    assert requests[0].tokens.tolist() == requests[1].tokens.tolist()
    together = generate_all(generate, requests)
    again = [generate_all(generate, [request])[0] for request in requests]
    assert np.abs(alone[0].logprobs - alone[1].logprobs).max() > 1e-3, "the images make a difference"
    for segments in (together, again):
        for segment, expected in zip(segments, alone, strict=False):
            assert segment.tokens.tolist() == expected.tokens.tolist()
            np.testing.assert_allclose(segment.logprobs, expected.logprobs, atol=1e-5)
    assert [segment.cached_tokens for segment in again] == [len(request.tokens) - 1 for request in requests]


class Tower:
    """Counts the images whose features an engine computes; the model's own forward calls another method."""

    def __init__(self, model):
        self.images = 0
        original = model.get_image_features

        @functools.wraps(original)
        def counted(pixel_values, *arguments, **named):
            grids = named.get("image_grid_thw")
            self.images += len(pixel_values if grids is None else grids)
            return original(pixel_values, *arguments, **named)

        model.get_image_features = counted


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_features_are_computed_once_until_the_weights_change(family):
    model, processor = build(family)
    tower = Tower(model)
    generate = engine.Transformers(model, processor, prefix_cache_bytes=0)
    one, two = pictures(1, 2)
    requests = [looking(generate, ["a" * (seed % 3), "b"], [one], seed) for seed in range(6)]
    requests += [looking(generate, ["a", "b"], [two, one], 6)]
    agrees(model, processor, requests, generate_all(generate, requests))
    agrees(model, processor, requests, generate_all(generate, requests))
    assert tower.images == 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sum(parameter.sum() for parameter in model.model.parameters()).backward()
    optimizer.step()
    moved = generate_all(generate, requests)
    assert tower.images == 4, "computed again by the new weights"
    agrees(model, processor, requests, moved)


def test_a_copied_model_computes_image_features_with_its_own_weights():
    model, processor = build("qwen2_5_vl")
    other, _ = build("qwen2_5_vl", seed=1)
    generate = engine.Transformers(model, processor, copy=True)
    requests = [looking(generate, ["a", "b"], [screenshot(1)], seed) for seed in range(2)]
    with torch.no_grad():
        model.model.visual.merger.mlp[0].weight.mul_(3.0)
    before = generate_all(generate, requests)
    agrees(build("qwen2_5_vl")[0], processor, requests, before)
    generate.update_weights(model, version=1)
    agrees(model, processor, requests, generate_all(generate, requests))
    generate.update_weights(other, version=2)
    after = generate_all(generate, requests)
    assert {segment.policy_version for segment in after} == {2}
    agrees(other, processor, requests, after)


def test_a_batch_invariant_engine_returns_identical_bits_alone_and_batched():
    model, processor = build("smolvlm")
    generate = engine.Transformers(model, processor, batch_invariant=True)
    requests = [looking(generate, ["a", "b"], [image], seed) for seed, image in enumerate(pictures(1, 2, 3))]
    together = generate_all(generate, requests)
    fresh = engine.Transformers(model, processor, batch_invariant=True)
    for request, segment in zip(requests, together, strict=True):
        [alone] = generate_all(fresh, [request])
        assert (alone.tokens.tobytes(), alone.logprobs.tobytes()) == (
            segment.tokens.tobytes(),
            segment.logprobs.tobytes(),
        )


def test_images_without_a_token_between_them():
    """Tokens of touching images attend to each other in Gemma 3, so the following ones belong to the shared prefix."""
    model, processor = build("gemma3")
    generate = engine.Transformers(model, processor)
    token, one, two = model.config.image_token_id, screenshot(1), screenshot(2)

    def request(seed, *images):
        ids = [5] * 70 + [token] * 4 * len(images) + [6, 7]
        return Request(np.array(ids, np.int32), seed, SAMPLING, images=images)

    requests = [request(0, one), request(1, one, two), request(2, one, one), request(3, one)]
    agrees(model, processor, requests, generate_all(generate, requests))
    agrees(model, processor, requests[::-1], generate_all(generate, requests[::-1]))
    [again] = generate_all(generate, [request(4, two, one)])
    assert again.cached_tokens == 70


def test_invalid_images_fail_only_their_own_request():
    model, processor = build("qwen2_5_vl")
    generate = engine.Transformers(model, processor)
    one, large = screenshot(1), screenshot(1, 112, 56)
    good, text = looking(generate, ["a", "b"], [one], 0), looking(generate, ["a"], [], 1)
    jpeg = io.BytesIO()
    Picture.open(io.BytesIO(one.content)).save(jpeg, "JPEG")
    broken = Image(jpeg.getvalue()[:-100])
    wrong = {
        replace(good, images=(one, one)): r"has 4 image tokens \(id 3\), but request.images needs 8",
        replace(good, images=()): "has 4 image tokens .*, but request.images needs 0",
        replace(good, images=(large,)): "has 4 image tokens .*, but request.images needs 8",
        replace(good, images=(broken,)): "cannot be read",
        replace(good, images=(screenshot(3, 8, 2000),)): "the processor refuses Image",
        replace(text, images=(one,)): "has 0 image tokens",
        replace(good, tokens=good.tokens[: int(np.flatnonzero(good.tokens == 3)[-1]) + 1]): "ends with an image token",
        replace(text, tokens=np.append(text.tokens, model.config.video_token_id).astype(np.int32)): "placeholder of",
    }
    results = outcomes(generate, [good, *wrong, text])
    agrees(model, processor, [good, text], [results[0], results[-1]])
    for error, message in zip(results[1:-1], wrong.values(), strict=True):
        assert isinstance(error, InvalidInputError)
        with pytest.raises(InvalidInputError, match=message):
            raise error
    with pytest.raises(InvalidInputError, match=r"Request: images holds b'PNG'; give a tuple of env\.Image"):
        replace(good, images=(b"PNG",))


def test_engines_that_take_no_images_refuse_them(make_model, tokenizer):
    model, processor = build("qwen2_5_vl")
    sees = engine.Transformers(model, processor)
    request = looking(sees, ["a", "b"], [screenshot(1)], 0)
    assert sees.takes_images
    for generate in (
        engine.Transformers(model, processor.tokenizer),
        engine.Transformers(make_model("llama"), tokenizer),
    ):
        assert not generate.takes_images
        with pytest.raises(UnsupportedError, match="the request has images, and this engine takes none"):
            generate_all(generate, [request])
    blind = engine.Transformers(model, processor.tokenizer)
    with pytest.raises(InvalidInputError, match=r"holds token 3, a placeholder of images; make the engine with the"):
        generate_all(blind, [Request(request.tokens, 0, SAMPLING)])
    model.config.text_config.use_bidirectional_attention = "vision"
    with pytest.raises(UnsupportedError, match="tokens of an image attend to each other in"):
        engine.Transformers(model, processor)


def test_the_processor_is_found_beside_the_model(tmp_path):
    model, processor = build("qwen2_5_vl")
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = engine.Transformers(type(model).from_pretrained(tmp_path))
    assert loaded.takes_images
    request = looking(loaded, ["a", "b"], [screenshot(1)], 0)
    agrees(model, processor, [request], generate_all(loaded, [request]))


def test_an_aborted_request_returns_its_tokens_and_can_be_continued():
    model, processor = build("gemma3")
    generate = engine.Transformers(model, processor)
    request = looking(generate, ["a", "b"], [screenshot(1)], 0, Sampling(max_tokens=5000))

    async def cut_off():
        running = asyncio.ensure_future(generate.generate(request))
        await generate.generate(looking(generate, ["a", "b"], [screenshot(2)], 1))
        generate.abort(request)
        return await running

    segment = asyncio.run(cut_off())
    assert segment.finish_reason == "abort"
    assert len(segment.tokens) >= 8
    agrees(model, processor, [request], [segment])
    rest = Request(np.concatenate([request.tokens, segment.tokens]), 2, SAMPLING, images=request.images)
    [more] = generate_all(generate, [rest])
    assert more.cached_tokens == len(rest.tokens) - 1
    agrees(model, processor, [rest], [more])
