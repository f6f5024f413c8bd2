"""What a program that was cut off had sampled and does not ask for any more: kept in its group, and never drawn."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_core.data.forest import Forest
from agentrl_core.engine.base import Segment

_FIRST_MEMBER = 1 << 20
"""Behind whatever a program starts itself."""


def keep_left_over(forest: Forest, group: int, segments: Sequence[tuple[str, Segment]], engines: int) -> None:
    """Keep recorded segments as trajectories of a group: helpers that were aborted, one for each.

    A record names the question and has its digest, and the context is that of a program which nobody runs any more:
    so they stand without it, and their `info` has the name. A segment that was aborted before its first token, and
    whatever was recorded for a group that this iteration does not have, is told alone.

    Args:
        forest: has the group.
        group: its number.
        segments: by their names in the journal (group, branch, number of the segment).
        engines: how many there are; an agent behind them is spoken for by the first.
    """
    for place, (name, segment) in enumerate(segments):
        if not len(segment.tokens):
            continue
        agent = int(name.split("/")[1].split(".")[0])
        handle = forest.start(group, _FIRST_MEMBER + place, agent=agent, role="helper")
        forest.append(
            handle,
            segment.tokens,
            kind="action",
            logprobs=segment.logprobs,
            entropies=segment.entropies,
            policy=agent if agent < engines else 0,
            policy_version=segment.policy_version,
            seed=segment.seed,
            finish_reason=segment.finish_reason,
        )
        forest.step(handle)
        forest.finish(handle, status="aborted", info={"aborted": f"recorded as {name}, and not asked for again"})
