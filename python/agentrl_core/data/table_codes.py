"""Integer codes and flags in the tables' columns; the metadata of files documents them too."""

from enum import IntFlag

CODES = {
    "kind": ("prompt", "action", "observation", "injected"),
    "finish_reason": ("none", "stop", "length", "abort"),
    "status": ("finished", "truncated", "aborted", "pruned", "failed", "partial"),
    "origin": ("generated", "expert", "imagined", "imported"),
    "role": ("member", "baseline", "helper"),
    "source": ("fresh", "replay", "expert", "failed", "imagined"),
    "old_logprob": ("behaviour", "recomputed", "none"),
    "drift": ("clean", "realigned", "rewritten", "retokenised", "truncated"),
}
"""Name of a column to the names of its codes 0, 1, 2, …"""

PROMPT, ACTION, OBSERVATION, INJECTED = range(4)
"""Codes of `nodes.kind`."""


class StepFlag(IntFlag):
    """Named bits of `steps.flags`. Other bits below `UNTRAINED` are free for environments.

    Components refer to a flag by its name in lower case: `weight.FlagFilter(flags="void")`. A computed column of that
    name takes precedence.

    Example:
        >>> from agentrl_core.env import StepFlag
        >>> StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR
        <StepFlag.TOOL_ERROR|TOOL_RESULT: 5>
    """

    TOOL_ERROR = 1
    """The action called a tool, and the tool failed."""
    FORMAT_ERROR = 2
    """The action had no tool call or answer that parses."""
    TOOL_RESULT = 4
    """A tool was called: the observation is its result or error."""
    VOID = 8
    """The turn had no effect: it ended before a tool call or an answer was complete (a void turn)."""
    JUDGE_FAILED = 16
    """The judge of the turn failed."""
    UNTRAINED = 1 << 31
    """The step's tokens are in the data but not trained."""


UNTRAINED = int(StepFlag.UNTRAINED)
"""Bit of `steps.flags`: the step's tokens are in the data but not trained."""

FLAGS = {str(flag.name).lower(): int(flag) for flag in StepFlag}
"""Names of the bits of `steps.flags` for components."""

ROUTED_EXPERTS = "routed_experts"
"""The token column with the experts that routers chose (`Segment.routed_experts`)."""
