"""The engine on transformers shows images as the model's own forward does, whatever is shared between requests."""

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from vision_models import build, screenshot

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

FAMILIES = ["qwen2_5_vl", "smolvlm", "idefics3", "gemma3", "qwen3_vl"]
SIZES = [(56, 56), (84, 56), (56, 112), (64, 64)]
SAMPLING = Sampling(max_tokens=8)


def pictures(*seeds):
    """Screenshots whose sizes, and with them their numbers of tokens, differ."""
    return [screenshot(seed, *SIZES[seed % len(SIZES)]) for seed in seeds]


def looking(generate, texts, images, seed, sampling=SAMPLING):
    """A request of one turn: texts with images between them."""
    content = [part for pair in zip(texts, images, strict=False) for part in pair] + list(texts[len(images) :])
    tokens = generate.chat.prompt([{"role": "user", "content": content}])
    return Request(tokens, seed, sampling, images=tuple(images))


def plain(model, processor, request, segment, sampling=SAMPLING):
    """Log-probs of a segment by the model's own forward with pixels, by nothing of the package."""
    import io

    ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
    config = model.config
    token = config.image_token_id
    given = {}
    if request.images:
        shown = [Picture.open(io.BytesIO(image.content)).convert("RGB") for image in request.images]
        nested = [shown] if "Idefics3" in type(processor).__name__ or "SmolVLM" in type(processor).__name__ else shown
        given = dict(processor.image_processor(images=nested, return_tensors="pt"))
        given = {name: value for name, value in given.items() if torch.is_tensor(value) and name != "num_crops"}
    if "qwen" in config.model_type:
        given["mm_token_type_ids"] = (ids == token).long()
    if config.model_type == "gemma3":
        given["token_type_ids"] = (ids == token).long()
    with torch.no_grad():
        logits = model(ids, **given).logits[0, len(request.tokens) - 1 : -1].double() / sampling.temperature
    for name in ("image_token_id", "video_token_id"):
        if isinstance(getattr(config, name, None), int):
            logits[:, getattr(config, name)] = -torch.inf
    log_p = torch.log_softmax(logits, -1)
    entropy = torch.special.entr(log_p.exp()).sum(-1)
    return log_p.gather(-1, torch.from_numpy(segment.tokens.astype(np.int64))[:, None])[:, 0].numpy(), entropy.numpy()


def agrees(model, processor, requests, segments):
    for request, segment in zip(requests, segments, strict=True):
        logprobs, entropies = plain(model, processor, request, segment, request.sampling)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(segment.entropies, entropies, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_equal_the_models_own_forward(family):
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
    assert all(segment.cached_tokens > len(request.tokens) - 1 for request, segment in zip(requests, second, strict=True))
    agrees(model, processor, later, second)


@pytest.mark.parametrize("family", FAMILIES[:2] + ["gemma3"])
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
    for found in (together, again):
        for segment, expected in zip(found, alone, strict=False):
            assert segment.tokens.tolist() == expected.tokens.tolist()
            np.testing.assert_allclose(segment.logprobs, expected.logprobs, atol=1e-5)
    assert [segment.cached_tokens for segment in again] == [len(request.tokens) - 1 for request in requests]
