"""vLLM processes images like the model's own forward, and computes each one once."""

import io
from dataclasses import replace

import numpy as np
import pytest
import vision_models
from looking import looking, outcomes, plain
from PIL import Image as Picture
from transformers import AutoProcessor
from vision_models import build, screenshot
from vllm_server import ARGUMENTS, serving

from agentrl_core import engine
from agentrl_core.engine import Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.env import Image
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

pytestmark = pytest.mark.vllm
SAMPLING = Sampling(max_tokens=6)


def wide(family, seed=0):
    """Return a model whose heads are as wide as vLLM needs, and its processor."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("hidden_size", 64), ("num_attention_heads", 2), ("num_key_value_heads", 1)):
            patch.setitem(vision_models.TEXT, name, value)
        for name, value in (("hidden_size", 64), ("num_heads", 2)):
            patch.setitem(vision_models.QWEN, name, value)
        return build(family, seed)


@pytest.fixture(scope="module", params=["smolvlm", "qwen2_5_vl"])
def make(request):
    """make(seed): a model and its processor."""
    return lambda seed=0: wide(request.param, seed)


@pytest.fixture(scope="module")
def generate(make):
    vllm_engine = engine.Vllm(*make(), max_model_len=512)
    yield vllm_engine
    vllm_engine.close()


def test_vllm_shows_images_as_the_model_does(make, generate):
    model, processor = make()
    assert generate.takes_images
    one, other, wide = screenshot(1), screenshot(2), screenshot(3, 112, 56)
    requests = [
        looking(generate, ["What?" * 40, "?"], [one], 0, SAMPLING),
        looking(generate, ["What?" * 40, "?"], [other], 0, SAMPLING),  # equal tokens
        looking(generate, ["a", "b", "c"], [wide, one], 1, Sampling(temperature=0.7, max_tokens=6)),
        looking(generate, ["no image"], [], 2, SAMPLING),
    ]
    assert requests[0].tokens.tolist() == requests[1].tokens.tolist()
    for _ in range(2):  # the second time from its caches
        segments = generate_all(generate, requests)
        for request, segment in zip(requests, segments, strict=True):
            expected = plain(model, processor, request, segment, request.sampling)[0]
            np.testing.assert_allclose(segment.logprobs, expected, atol=1e-4)
    assert segments[0].cached_tokens > 64
    turn = generate.chat.observation([{"role": "user", "content": ["Now:", other]}])
    tokens = np.concatenate([requests[0].tokens, segments[0].tokens, turn]).astype(np.int32)
    later = replace(requests[0], tokens=tokens, images=(one, other))
    [segment] = generate_all(generate, [later])
    np.testing.assert_allclose(segment.logprobs, plain(model, processor, later, segment, SAMPLING)[0], atol=1e-4)
    wrong = [
        replace(requests[0], images=(one, one)),
        replace(requests[0], images=()),
        replace(requests[0], images=(wide,)),
    ]
    results = outcomes(generate, [requests[0], *wrong])
    assert results[0].tokens.tolist() == segments[0].tokens.tolist()
    for error in results[1:]:
        assert isinstance(error, InvalidInputError)
    # New weights of the vision tower: no feature of the old ones is left.
    moved, _ = make(seed=1)
    generate.update_weights(moved, version=1)
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        assert segment.policy_version == 1
        np.testing.assert_allclose(
            segment.logprobs, plain(moved, processor, request, segment, request.sampling)[0], atol=1e-4
        )


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return Image(file.getvalue())


@pytest.mark.slow
def test_a_server_shows_images_as_the_model_does(tmp_path):
    model, processor = wide("smolvlm")
    with pytest.raises(UnsupportedError, match="the config of the processor's model is needed"):
        engine.VllmServer("http://127.0.0.1:9", processor)
    folder = tmp_path / "model"
    for each in (model, processor):
        each.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    arguments = (*ARGUMENTS, "--no-skip-tokenizer-init", "--max-model-len", "512", "--max-num-batched-tokens", "512")
    pixels = np.random.default_rng(0).integers(0, 256, (56, 56, 4), np.uint8)
    clear = saved(Picture.fromarray(pixels, "RGBA"), "PNG")  # vLLM would blend it with white
    turned = Picture.Exif()
    turned[0x0112] = 6
    photo = saved(Picture.fromarray(pixels[:, :28, :3]), "JPEG", exif=turned)  # and rotate this one
    with serving(folder, tmp_path / "log", *arguments) as server:
        generate = engine.VllmServer(server.url, processor, folder=tmp_path / "weights")
        one, other, large = screenshot(1), screenshot(2), screenshot(3, 112, 56)
        requests = [
            looking(generate, ["What?" * 20, "?"], [one], 0, SAMPLING),
            looking(generate, ["What?" * 20, "?"], [other], 0, SAMPLING),  # equal tokens
            looking(generate, ["a", "b", "c"], [large, one], 1, Sampling(temperature=0.7, max_tokens=6)),
            looking(generate, ["a", "b", "c"], [clear, photo], 2, SAMPLING),
            looking(generate, ["no image"], [], 3, SAMPLING),
        ]
        for version in range(2):
            for _ in range(2):  # the second time from its caches
                for request, segment in zip(requests, generate_all(generate, requests), strict=True):
                    assert segment.policy_version == version
                    expected = plain(model, processor, request, segment, request.sampling)[0]
                    np.testing.assert_allclose(segment.logprobs, expected, atol=1e-4)
            if version == 0:
                model, _ = wide("smolvlm", seed=1)
                generate.update_weights(model, version=1)
        wrong = [replace(requests[0], images=images) for images in ((one, one), (), (large,))]
        results = outcomes(generate, [requests[0], *wrong])
        assert len(results[0].tokens) == 6
        assert all(isinstance(error, InvalidInputError) for error in results[1:])
        generate.close()
