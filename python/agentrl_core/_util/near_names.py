"""Suggest the known names nearest to a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near_names(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: similar known names, or `otherwise` if there are none.

    Args:
        name: the unknown name; case does not matter.
        known: the names that exist.
        otherwise: the end of the error if no name is near.

    Example:
        >>> from agentrl_core._util.near_names import near_names
        >>> near_names("grppo", ["GRPO", "PPO", "GAE"], "use one of: GRPO, PPO, GAE")
        'did you mean GRPO or PPO?'
        >>> near_names("dreamer", ["GRPO", "PPO", "GAE"], "use one of: GRPO, PPO, GAE")
        'use one of: GRPO, PPO, GAE'
    """
    folded = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), folded, n=3)
    return f"did you mean {' or '.join(folded[each] for each in close)}?" if close else otherwise
