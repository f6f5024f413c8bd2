"""vLLM shows images as the model's own forward does, of which it gets each once."""

from dataclasses import replace

import numpy as np
import pytest
import vision_models
from looking import looking, outcomes, plain
from vision_models import build, screenshot

from agentrl_core import engine
from agentrl_core.engine import Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import InvalidInputError

pytestmark = pytest.mark.vllm
SAMPLING = Sampling(max_tokens=6)


@pytest.fixture(scope="module", params=["smolvlm", "qwen2_5_vl"])
def make(request):
    """make(seed): a model whose heads are as wide as vLLM needs, and its processor."""

    def built(seed=0):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("hidden_size", 64), ("num_attention_heads", 2), ("num_key_value_heads", 1)):
                patch.setitem(vision_models.TEXT, name, value)
            for name, value in (("hidden_size", 64), ("num_heads", 2)):
                patch.setitem(vision_models.QWEN, name, value)
            return build(request.param, seed)

    return built


@pytest.fixture(scope="module")
def generate(make):
    made = engine.Vllm(*make(), max_model_len=512)
    yield made
    made.close()


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
    found = outcomes(generate, [requests[0], *wrong])
    assert found[0].tokens.tolist() == segments[0].tokens.tolist()
    for error in found[1:]:
        assert isinstance(error, InvalidInputError)
    # New weights of the vision tower: no feature of the old ones is left.
    moved, _ = make(seed=1)
    generate.update_weights(moved, version=1)
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        assert segment.policy_version == 1
        np.testing.assert_allclose(
            segment.logprobs, plain(moved, processor, request, segment, request.sampling)[0], atol=1e-4
        )
