"""What the codes of the tables stand for; the files say the same in the metadata of their columns."""

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
    """Bits of `steps.flags` that have a name. The others below `UNTRAINED` are the environment's own.

    Components know a flag by its name in small letters: `weight.FlagFilter(flags="void")`. A computed column of that
    name goes before it.

    Example:
        >>> from agentrl_core.env import StepFlag
        >>> StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR
        <StepFlag.TOOL_ERROR|TOOL_RESULT: 5>
    """

    TOOL_ERROR = 1
    """The action called a tool, and the tool could not do it."""
    FORMAT_ERROR = 2
    """The action held neither a tool call nor an answer that parses."""
    TOOL_RESULT = 4
    """A tool was called: the observation is its reply, be it a result or an error."""
    VOID = 8
    """The turn did nothing: it broke off before a tool call or an answer was complete (a void turn)."""
    JUDGE_FAILED = 16
    """What should have judged the turn could not."""
    UNTRAINED = 1 << 31
    """The step's tokens are in the data but not trained."""


UNTRAINED = int(StepFlag.UNTRAINED)
"""Bit of `steps.flags`: the step's tokens are in the data but not trained."""

FLAGS = {str(flag.name).lower(): int(flag) for flag in StepFlag}
"""Names of the bits of `steps.flags`, as components know them."""
