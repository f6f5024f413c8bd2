"""Train agents of any framework: an endpoint records their tokens while they run unchanged.

`Endpoint` is an OpenAI- and Anthropic-compatible server in front of a generator: `VllmUpstream`, a vLLM server, or
`EngineUpstream`, an engine of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.agents.endpoint import Endpoint
    from agentrl_core.agents.engine_upstream import EngineUpstream
    from agentrl_core.agents.upstream import VllmUpstream

_HOME = {"Endpoint": "endpoint", "EngineUpstream": "engine_upstream", "VllmUpstream": "upstream"}

__all__ = ["Endpoint", "EngineUpstream", "VllmUpstream"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
