"""Prefixes: first actions of a branch from an expert, a stored trajectory or another branch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.json_text import is_unicode
from agentrl_core.exceptions import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

Action = str | NDArray[np.int32]
"""A text, or sampled tokens including the stop token."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """First actions of a branch that it did not sample: they are not trained, but submitted to its environment.

    The environment answers each of them again, and the branch continues from the resulting state. Pass one to
    `Group.start`: from a demonstration (`Prefix(["open the door"])`), of a trajectory in a store (`stored`) or of a
    branch (`of`). Sources: DR-PO (arXiv:2404.08495), ActiveVLN (arXiv:2509.12618), Tree-OPO (arXiv:2509.09284).

    Args:
        actions: whole actions, each a text or tokens.
        begun: the start of one more action, which the branch continues.
        seed: seed of the episode; None: the branch's own. Episodes that depend on their seed need the original one.
        contexts: the tokens before each action, if known: if the environment's answer differs, the branch fails. The
            context of the first action is unknown if the prompt differs.
        title: description, for messages and the table `decisions`.

    Example:
        >>> from agentrl_core.rollout import Prefix
        >>> Prefix(["go north", "open the door"], begun="take").actions
        ['go north', 'open the door']
    """

    actions: Sequence[Action] = ()
    begun: Action | None = None
    seed: int | None = None
    contexts: Sequence[NDArray[np.int32] | None] = field(default=(), repr=False)
    title: str = "prefix"

    def __post_init__(self) -> None:
        if isinstance(self.actions, (str, bytes)):
            raise InvalidInputError(f"Prefix: actions is the text {self.actions!r:.80}; give a list of actions")
        unfinished = () if self.begun is None else (self.begun,)
        for place, action in enumerate((*self.actions, *unfinished)):
            name = f"actions[{place}]" if place < len(self.actions) else "begun"
            if not (isinstance(action, str) or (isinstance(action, np.ndarray) and action.dtype.kind in "iu")):
                raise InvalidInputError(f"Prefix: {name} is {action!r:.80}; give a text, or a NumPy array of token ids")
            if len(action) == 0:
                raise InvalidInputError(f"Prefix: {name} is empty; leave it out")
        title: object = self.title
        if not (isinstance(title, str) and is_unicode(title)):
            raise InvalidInputError(f"Prefix: title is {self.title!r:.80}; give a text without a lone surrogate")

    @classmethod
    def stored(
        cls, batch: Batch, trajectory_id: int, *, turns: int | None = None, tokens: int = 0, seed: int | None = None
    ) -> Prefix:
        """Return a prefix of a trajectory of a batch (`Store.batch`, `Store.trajectory_batch`).

        Args:
            batch: the batch of the trajectory.
            trajectory_id: id in table `trajectories`.
            turns: number of its turns; None: all.
            tokens: number of tokens of the action after these turns, to include as well.
            seed: seed of the episode, if the episode depends on it.

        Raises:
            NotFoundError: the batch does not have the trajectory.
            InvalidInputError: it has fewer turns or tokens, or its context was rewritten before.
        """
        if not (batch.trajectories.column("trajectory_id") == trajectory_id).any():
            raise NotFoundError(
                f"Prefix: the batch has no trajectory {trajectory_id}; give the id of one of its trajectories"
            )
        with_draw = batch.with_draws([trajectory_id], iteration=0)
        draw = with_draw.num_draws - 1
        first, last = with_draw.offsets("step")[draw : draw + 2].tolist()
        turns = last - first if turns is None else turns
        title = f"trajectory {trajectory_id} after {turns} turns"
        _check_turns(turns, last - first, tokens, f"trajectory {trajectory_id}")
        of_token, contexts = with_draw.offsets("token"), with_draw.contexts()
        context = np.flatnonzero(contexts.draws == draw)[0]
        path, begins = contexts.tokens[contexts.offsets[context] : contexts.offsets[context + 1]], contexts.begins
        turns_needed = turns + bool(tokens)
        if contexts.steps[context + 1] - first < turns_needed:
            raise InvalidInputError(
                f"Prefix: turns is {turns} for trajectory {trajectory_id}, whose context was rewritten before that "
                "turn; give fewer turns"
            )
        ends = [int(begins[row] + of_token[row + 1] - of_token[row]) for row in range(first, first + turns_needed)]
        starts = [int(begins[row]) for row in range(first, first + turns_needed)]
        if not 0 <= tokens <= (ends[-1] - starts[-1] if tokens else 0):
            raise InvalidInputError(
                f"Prefix: tokens is {tokens} for {title}, whose next action has {ends[-1] - starts[-1]} tokens; give a "
                f"number from 0 to {ends[-1] - starts[-1]}"
            )
        return cls(
            actions=[path[begin:end] for begin, end in zip(starts[:turns], ends, strict=False)],
            begun=path[starts[-1] : starts[-1] + tokens] if tokens else None,
            seed=seed,
            contexts=[None, *(path[end:begin] for end, begin in zip(ends, starts[1:], strict=False))],
            title=title,
        )

    @classmethod
    def of(cls, branch: Any, turns: int | None = None, *, tokens: int = 0) -> Prefix:
        """Return the first turns of a branch as a prefix for another group; within its group, fork it instead.

        Args:
            branch: a `Branch`, running or ended.
            turns: number of its turns; None: all answered turns.
            tokens: number of tokens of the action after these turns, to include as well.

        Raises:
            InvalidInputError: the branch has fewer turns.
        """
        turns = len(branch.turns) if turns is None else turns
        _check_turns(turns, len(branch.turns), tokens, f"branch {branch.name}")
        path = branch.tokens
        spans = [(turn.begin.tokens, turn.begin.tokens + turn.length) for turn in branch.turns[: turns + bool(tokens)]]
        return cls(
            actions=[path[begin:end] for begin, end in spans[:turns]],
            begun=path[spans[-1][0] : spans[-1][0] + tokens] if tokens else None,
            seed=branch.seed,
            contexts=[None, *(path[end:begin] for (_, end), (begin, _) in itertools.pairwise(spans))],
            title=f"branch {branch.name} after {turns} turns",
        )


async def submit_prefix(prefix: Prefix, branch: Any) -> None:
    """Submit the untrained actions of a prefix to the environment of a branch that has its prompt."""
    path, vocabulary_size = branch.path, branch._runtime.vocabulary_size(branch.agent)
    for place, action in enumerate(prefix.actions):
        path.flush()
        expected = prefix.contexts[place] if place < len(prefix.contexts) else None
        if expected is not None and not np.array_equal(expected, branch.tokens[-len(expected) :]):
            branch._fail(
                f"{prefix.title}: the observation before action {place + 1} differs from the recorded one; "
                "give the prefix the seed of its episode, and an environment with replayable=True"
            )
        if branch.over:
            return
        path.write(action, vocabulary_size, trained=False)
        await branch.submit()
    if prefix.begun is not None and not branch.over:
        path.flush()
        path.write(prefix.begun, vocabulary_size, trained=False, ends=False)


def _check_turns(turns: int, count: int, tokens: int, what: str) -> None:
    """Require that a trajectory has the turns, and an action after them if some of its tokens are requested."""
    if not 0 <= turns <= count:
        raise InvalidInputError(
            f"Prefix: turns is {turns}, but {what} has {count} turns; give a number from 0 to {count}"
        )
    if tokens and turns == count:
        raise InvalidInputError(
            f"Prefix: tokens is {tokens}, but {what} has no action after its {count} turns; give fewer turns, or leave "
            "tokens out"
        )
