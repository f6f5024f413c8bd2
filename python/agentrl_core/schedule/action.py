"""Base of what happens between optimizer steps and after them."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.component import Component


@dataclass(frozen=True)
class Action(Component, ABC):
    """What happens to models, rates and the loop between optimizer steps and after the last one."""

    phase: ClassVar[str] = "after"
