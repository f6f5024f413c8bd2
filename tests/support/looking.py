"""Requests that show images, and the log-probs of their segments by the model's own forward."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Picture
from vision_models import screenshot

from agentrl_core.engine import Engine, Request, Sampling, Segment
from agentrl_core.env import Image

SIZES = [(56, 56), (84, 56), (56, 112), (64, 64)]
SAMPLING = Sampling(max_tokens=8)


def pictures(*seeds: int) -> list[Image]:
    """Return screenshots with different sizes, so different numbers of tokens."""
    return [screenshot(seed, *SIZES[seed % len(SIZES)]) for seed in seeds]


def looking(
    generate: Engine, texts: Sequence[str], images: Sequence[Image], seed: int, sampling: Sampling = SAMPLING
) -> Request:
    """Return a request of one turn: texts with images between them."""
    content = [part for pair in zip(texts, images, strict=False) for part in pair] + list(texts[len(images) :])
    tokens = generate.chat.prompt([{"role": "user", "content": content}])
    return Request(tokens, seed, sampling, images=tuple(images))


def plain(
    model: Any, processor: Any, request: Request, segment: Segment, sampling: Sampling = SAMPLING
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the log-probs of a segment by the model's own forward with pixels, without code of the package."""
    ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
    config = model.config
    token = config.image_token_id
    inputs: dict[str, Any] = {}
    if request.images:
        opened = [Picture.open(io.BytesIO(image.content)).convert("RGB") for image in request.images]
        nested = [opened] if "Idefics3" in type(processor).__name__ or "SmolVLM" in type(processor).__name__ else opened
        inputs = dict(processor.image_processor(images=nested, return_tensors="pt"))
        inputs = {name: value for name, value in inputs.items() if torch.is_tensor(value) and name != "num_crops"}
    if "qwen" in config.model_type:
        inputs["mm_token_type_ids"] = (ids == token).long()
    if config.model_type == "gemma3":
        inputs["token_type_ids"] = (ids == token).long()
    with torch.no_grad():
        logits = model(ids, **inputs).logits[0, len(request.tokens) - 1 : -1].double() / sampling.temperature
    for name in ("image_token_id", "video_token_id"):
        if isinstance(getattr(config, name, None), int):
            logits[:, getattr(config, name)] = -torch.inf
    log_p = torch.log_softmax(logits, -1)
    entropy = torch.special.entr(log_p.exp()).sum(-1)
    return log_p.gather(-1, torch.from_numpy(segment.tokens.astype(np.int64))[:, None])[:, 0].numpy(), entropy.numpy()


def agrees(model: Any, processor: Any, requests: Sequence[Request], segments: Sequence[Segment]) -> None:
    for request, segment in zip(requests, segments, strict=True):
        logprobs, entropies = plain(model, processor, request, segment, request.sampling)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(np.asarray(segment.entropies), entropies, atol=1e-5)


def outcomes(generate: Engine, requests: Sequence[Request]) -> list[Any]:
    """Return the segments, and the errors of failed ones."""

    async def each() -> list[Any]:
        return await asyncio.gather(*map(generate.generate, requests), return_exceptions=True)

    return asyncio.run(each())
