"""Engines: token ids in, token ids and behaviour log-probabilities out.

`Transformers` samples from a PyTorch model of Hugging Face, `Vllm` from vLLM in this process, `VllmServer` from running
vLLM servers, `Scripted` returns the replies of a test; `RayActor` puts any of them into an actor of a Ray cluster. Call
`await engine.generate(request)`, for many requests at a time, or `complete`. `Chat` turns text and
messages into the tokens of a chat and back. Names load on first use: importing this package imports neither torch nor
vLLM. `docs/engines.md` compares the engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.engine.base import Engine, Request, Sampling, Segment, complete
    from agentrl_core.engine.chat import Chat
    from agentrl_core.engine.entropy_temperature import EntropyTemperature
    from agentrl_core.engine.policy_weights import send_weights
    from agentrl_core.engine.ray_actor import RayActor
    from agentrl_core.engine.scripted import Scripted
    from agentrl_core.engine.transformers import Transformers
    from agentrl_core.engine.vllm import Vllm
    from agentrl_core.engine.vllm_server import VllmServer

_HOME = {
    "Chat": "chat",
    "Engine": "base",
    "EntropyTemperature": "entropy_temperature",
    "RayActor": "ray_actor",
    "Request": "base",
    "Sampling": "base",
    "Scripted": "scripted",
    "Segment": "base",
    "Transformers": "transformers",
    "Vllm": "vllm",
    "VllmServer": "vllm_server",
    "complete": "base",
    "send_weights": "policy_weights",
}

__all__ = [
    "Chat",
    "Engine",
    "EntropyTemperature",
    "RayActor",
    "Request",
    "Sampling",
    "Scripted",
    "Segment",
    "Transformers",
    "Vllm",
    "VllmServer",
    "complete",
    "send_weights",
]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
