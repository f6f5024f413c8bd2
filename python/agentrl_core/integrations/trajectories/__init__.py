"""Convert trajectories in shared formats to a `Batch` and back: OpenAI chats, traces of verifiers, ATIF.

`read` converts files of other programs to chats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.integrations.trajectories.atif import from_atif, to_atif
    from agentrl_core.integrations.trajectories.chats import from_chats, to_chats
    from agentrl_core.integrations.trajectories.readers.detect_format import read
    from agentrl_core.integrations.trajectories.verifiers import from_verifiers, to_verifiers

_HOME = {
    "from_atif": "atif",
    "from_chats": "chats",
    "from_verifiers": "verifiers",
    "read": "readers.detect_format",
    "to_atif": "atif",
    "to_chats": "chats",
    "to_verifiers": "verifiers",
}

__all__ = ["from_atif", "from_chats", "from_verifiers", "read", "to_atif", "to_chats", "to_verifiers"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
