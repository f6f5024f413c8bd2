"""Convert rollouts as rows of prompt and response, the form of other trainers, to a `Batch` and back."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.exceptions import InvalidInputError


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rollouts as rows of prompt and response with a mask, as in verl, TRL and slime.

    Each run of sampled tokens (mask 1) in a response is a turn; the tokens between two runs are the environment's
    observation. Rows of the same rollout are the contexts of one trajectory, in their order: an agent that compacts its
    history, or a rollout that the trainer split into several rows, stays one member of its group.

    Args:
        prompts: token ids before each response, an array for each row.
        responses: token ids of each response.
        masks: for each response, 1 for the tokens that the policy sampled.
        groups: for each row a key that the rows of a group share, such as verl's `uid`.
        rewards: rewards at each token of each response; rewards after a turn belong to that turn. Or one number for
            each row, the reward at its end.
        rollouts: for each row a key that the rows of one rollout share; None: each row is a rollout.
        logprobs: log-prob of each response token as sampled; None if unknown.
        components: for each row the parts of its reward by name, which become columns `reward.<name>`. For a rollout
            with several rows, those of the last row count, also in `success`.
        success: for each row whether its task was solved; None: unknown.
        columns: further numbers for each response token by name, such as `reference_logprob`.
        iteration: the iteration of the batch.

    Raises:
        InvalidInputError: arrays have different lengths, or the rows of one rollout are in two groups.

    Example:
        Two rollouts of a task; the first has two turns, with one token of a tool between them:

        >>> from agentrl_core import recipes
        >>> from agentrl_core.integrations.sequences import Sequences
        >>> rows = Sequences(
        ...     prompts=[[1, 2], [1, 2]],
        ...     responses=[[3, 4, 9, 5], [6, 7]],
        ...     masks=[[1, 1, 0, 1], [1, 1]],
        ...     groups=["a", "a"],
        ...     rewards=[1.0, 0.0],
        ... )
        >>> batch = recipes.GRPO.credit(rows.batch)
        >>> rows.batch, [values.round(3).tolist() for values in rows.spread(batch.column("advantage", "token"))]
        (Batch(2 draws in 1 groups, 2 trajectories, 5 nodes), [[0.707, 0.707, 0.0, 0.707], [-0.707, -0.707]])
    """

    prompts: Sequence[Any]
    responses: Sequence[Any]
    masks: Sequence[Any]
    groups: Sequence[Hashable]
    rewards: Sequence[Any]
    rollouts: Sequence[Hashable] | None = None
    logprobs: Sequence[Any] | None = None
    components: Mapping[str, Sequence[float]] = field(default_factory=dict)
    success: Sequence[bool] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    iteration: int = 0

    def __post_init__(self) -> None:
        rows = len(self.responses)
        row_values = {
            "rollouts": self.rollouts,
            "logprobs": self.logprobs,
            "success": self.success,
            **self.columns,
            **self.components,
        }
        row_values |= {name: getattr(self, name) for name in ("prompts", "masks", "groups", "rewards")}
        for name, values in row_values.items():
            if values is not None and len(values) != rows:
                raise InvalidInputError(f"{name} has {len(values)} rows, but responses has {rows}; give one for each")
        lengths = self._lengths.tolist()
        for name in ("masks", "logprobs", "rewards", *self.columns):
            values = self.columns[name] if name in self.columns else getattr(self, name)
            for row, (value, length) in enumerate(zip(() if values is None else values, lengths, strict=False)):
                if np.ndim(value) and len(value) != length:
                    raise InvalidInputError(
                        f"{name}[{row}] has {len(value)} values, but its response has {length} tokens; give one value "
                        "for each token"
                    )
        homes: dict[Hashable, Hashable] = {}
        for row, (rollout, group) in enumerate(zip(self._rollouts, self.groups, strict=True)):
            if homes.setdefault(rollout, group) != group:
                raise InvalidInputError(
                    f"rollout {rollout!r} has rows in groups {homes[rollout]!r} and {group!r} (row {row}); give all "
                    "rows of a rollout one group"
                )

    @property
    def _rollouts(self) -> Sequence[Hashable]:
        return range(len(self.responses)) if self.rollouts is None else self.rollouts

    @functools.cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.fromiter(map(len, self.responses), np.int64, len(self.responses))

    @functools.cached_property
    def _sampled(self) -> NDArray[np.bool_]:
        """Mask of the sampled tokens in the concatenated responses."""
        sampled: NDArray[np.bool_] = _joined(self.masks, np.float64) != 0
        return sampled

    @functools.cached_property
    def _rows(self) -> NDArray[np.int64]:
        """The row of each token in the concatenated responses."""
        return np.repeat(np.arange(len(self._lengths)), self._lengths)

    @functools.cached_property
    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The draw of each row, and the row's number in its rollout; both -1 for rows that are left out.

        Draws are ordered by group, and within a group by their first row. A row without sampled tokens is left out.
        """
        live = np.bincount(self._rows[self._sampled], minlength=len(self._lengths)) > 0
        rows = np.flatnonzero(live)
        rollouts, groups = _numbered([self._rollouts[row] for row in rows]), _numbered(self.groups)[rows]
        by_rollout = np.argsort(rollouts, kind="stable")
        counts = np.bincount(rollouts)
        within, draws = np.full((2, len(live)), -1, np.int64)
        within[rows[by_rollout]] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts = np.flatnonzero(within[rows] == 0)
        draw_of = np.empty(len(counts), np.int64)
        draw_of[rollouts[firsts[np.argsort(groups[firsts], kind="stable")]]] = np.arange(len(counts))
        draws[rows] = draw_of[rollouts]
        return draws, within

    @functools.cached_property
    def draws(self) -> NDArray[np.int64]:
        """The draw of each row in `batch`, `int64[rows]`; -1 for a row without sampled tokens."""
        return self._order[0]

    @functools.cached_property
    def _places(self) -> NDArray[np.int64]:
        """Positions of the batch's action tokens, in batch order, in the concatenated responses."""
        draws, within = self._order
        rows = self._rows[self._sampled]
        places: NDArray[np.int64] = np.flatnonzero(self._sampled)[np.lexsort((within[rows], draws[rows]))]
        return places

    @functools.cached_property
    def batch(self) -> Batch:
        """The rollouts as a batch, including the further columns.

        Raises:
            InvalidInputError: a log-prob is NaN or positive.
        """
        draws, within = self._order
        forest = Forest(iteration=self.iteration, reward_components=list(self.components) or None)
        for group, name in enumerate(dict.fromkeys(self.groups)):
            forest.add_group(group, str(name))
        groups = _numbered(self.groups)
        last: dict[int, int] = dict(sorted((int(draw), row) for row, draw in enumerate(draws.tolist()) if draw >= 0))
        # Draws are sorted by group, so a draw's member number counts from the first draw of its group.
        firsts: dict[int, int] = {}
        trajectories = [
            forest.start(group, draw - firsts.setdefault(group, draw))
            for draw, group in ((draw, int(groups[row])) for draw, row in last.items())
        ]
        handles = np.append(np.asarray(trajectories, np.int64), -1)[draws]
        for number in range(int(within.max(initial=-1)) + 1):
            self._grow(forest, handles, within == number)
        rewards_of_draws = np.bincount(draws[self._rows] + 1, self._token_rewards, minlength=len(last) + 1)[1:]
        for (draw, row), trajectory in zip(last.items(), trajectories, strict=True):
            rewards = [float(values[row]) for values in self.components.values()]
            solved = None if self.success is None else bool(self.success[row])
            forest.finish(trajectory, reward=float(rewards_of_draws[draw]), rewards=rewards or None, success=solved)
        batch = forest.freeze()
        columns = {name: _joined(values, np.float64)[self._places] for name, values in self.columns.items()}
        return batch.with_columns("token", **columns) if columns else batch

    @functools.cached_property
    def _token_rewards(self) -> NDArray[np.float64]:
        """Return the reward at each token; a single number for a row is the reward at its last token."""
        lengths = self._lengths.tolist()
        rows = [
            np.asarray(value, np.float64) if np.ndim(value) else np.append(np.zeros(max(length - 1, 0)), value)[:length]
            for value, length in zip(self.rewards, lengths, strict=True)
        ]
        return _joined(rows, np.float64)

    def _grow(self, forest: Forest, handles: NDArray[np.int64], picked: NDArray[np.bool_]) -> None:
        """Append one more row to each trajectory: its prompt opens a context, and the response follows."""
        inside = picked[self._rows]
        tokens = _joined(self.responses, np.int32)[inside]
        rows, sampled = self._rows[inside], self._sampled[inside]
        logprobs = None if self.logprobs is None else _joined(self.logprobs, np.float32)[inside]
        # A run is a stretch of one row that was sampled, or was not; it begins where the row or the mask changes.
        begins = np.flatnonzero(np.append(True, (np.diff(rows) != 0) | np.diff(sampled)))
        bounds, owner, action = np.append(begins, len(tokens)), rows[begins], sampled[begins]
        runs = np.flatnonzero(action)
        opens = np.append(True, np.diff(owner[runs]) != 0)  # the first action of each row
        starts = np.flatnonzero(np.append(True, np.diff(rows) != 0))
        # Rewards from one action to the next in a row belong to that action; earlier ones to the first action.
        since = begins[runs]
        since[opens] = starts
        reward = np.full(len(begins), np.nan, np.float32)
        reward[runs] = np.add.reduceat(self._token_rewards[inside], since)

        def of(values: NDArray[Any], chosen: NDArray[np.int64]) -> list[NDArray[Any]]:
            return [values[bounds[run] : bounds[run + 1]] for run in chosen.tolist()]

        first = runs[opens]
        entering = owner[first]
        forest.ingest(
            handles[entering],
            [
                np.concatenate([np.asarray(self.prompts[row], np.int32), tokens[start : begins[run]]])
                for row, start, run in zip(entering.tolist(), starts.tolist(), first.tolist(), strict=True)
            ],
            of(tokens, first),
            logprobs=None if logprobs is None else of(logprobs, first),
            reward=reward[first],
            # Rows of a rollout with the same context and tokens get different seeds, so that they stay distinct.
            seed=None if self.rollouts is None else entering,
        )
        later = np.flatnonzero(np.arange(len(begins)) > np.repeat(first, np.bincount(owner)[entering]))
        if len(later):
            chosen_logprobs = None if logprobs is None else of(logprobs, later)
            if chosen_logprobs is not None:
                chosen_logprobs = [
                    row if acts else row[:0] for row, acts in zip(chosen_logprobs, action[later].tolist(), strict=True)
                ]
            forest.append_many(
                handles[owner[later]],
                of(tokens, later),
                kind=np.where(action[later], 1, 2).astype(np.uint8),  # an action, an observation
                logprobs=chosen_logprobs,
                reward=reward[later],
            )

    def spread(self, values: Any, *, fill: float = 0.0) -> list[NDArray[np.float64]]:
        """Convert values of the batch's action tokens to values of response tokens, one array for each row.

        Args:
            values: one value for each row at level `token`, in batch order.
            fill: value for tokens that were not sampled.

        Raises:
            InvalidInputError: the number of values is wrong.
        """
        values = np.asarray(values, np.float64)
        if values.shape != self._places.shape:
            raise InvalidInputError(
                f"values has shape {values.shape}; give one value for each of the {len(self._places)} action tokens of "
                "the batch"
            )
        flat = np.full(int(self._lengths.sum()), fill)
        flat[self._places] = values
        return np.split(flat, np.cumsum(self._lengths)[:-1])

    @classmethod
    def of(cls, batch: Batch, *, columns: Sequence[str] = ()) -> Sequences:
        """Create the rows of a batch: one for each context of each draw, with the prompt up to the first sampled token.

        Tokens after the last action of a context are left out, and tokens of untrained actions count as context. The
        reward of a step is at the end of its action; the part of a trajectory's reward that is not in its steps is at
        the end of its last row.

        Args:
            batch: the batch.
            columns: names of token columns to include.

        Example:
            >>> import agentrl_core as arl
            >>> from agentrl_core.integrations.sequences import Sequences
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, member=0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.25])
            >>> forest.finish(trajectory, reward=1.0)
            >>> rows = Sequences.of(forest.freeze())
            >>> [row.tolist() for row in (rows.prompts[0], rows.responses[0], rows.masks[0], rows.rewards[0])]
            [[1, 2], [3, 4], [1, 1], [0.0, 1.0]]
        """
        contexts, of_tokens, of_steps = batch.contexts(), batch.offsets("token"), batch.offsets("step")
        if (contexts.begins < 0).any():
            step = int(np.flatnonzero(contexts.begins < 0)[0])
            draw = int(contexts.draws[np.searchsorted(contexts.steps, step, side="right") - 1])
            raise InvalidInputError(
                f"step {step} of the batch (draw {draw}) has no action tokens, so it has no place in a row; leave the "
                "draw out (batch.select_draws)"
            )
        numbers = {
            name: np.asarray(batch.column(name, "token"), np.float64)
            for name in ("trainable", "behaviour_logprob", *columns)
        }
        step_rewards = np.nan_to_num(np.asarray(batch.column("reward", "step"), np.float64))
        rest = np.nan_to_num(np.asarray(batch.column("reward", "draw"), np.float64))
        rest = rest - np.add.reduceat(np.append(step_rewards, 0.0), of_steps[:-1]) * (np.diff(of_steps) > 0)
        lists: dict[str, list[Any]] = {name: [] for name in ("prompts", "responses", "rewards", *numbers)}
        groups, rollouts = batch.keys("group_id", "draw"), []
        last = {int(draw): place for place, draw in enumerate(contexts.draws.tolist())}
        for place, draw in enumerate(contexts.draws.tolist()):
            tokens = contexts.tokens[contexts.offsets[place] : contexts.offsets[place + 1]]
            first, end = int(contexts.steps[place]), int(contexts.steps[place + 1])
            if first == end:
                continue
            prompt_length = int(contexts.begins[first])
            span = slice(int(of_tokens[first]), int(of_tokens[end]))
            lengths = np.diff(of_tokens[first : end + 1])
            starts = contexts.begins[first:end] - prompt_length
            length = int(starts[-1] + lengths[-1])
            places = np.repeat(starts - (of_tokens[first:end] - of_tokens[first]), lengths) + np.arange(lengths.sum())
            reward = np.zeros(length)
            reward[starts + lengths - 1] = step_rewards[first:end]
            if last[draw] == place:
                reward[-1] += rest[draw]
            lists["prompts"].append(tokens[:prompt_length])
            lists["responses"].append(tokens[prompt_length : prompt_length + length])
            lists["rewards"].append(reward)
            for name, values in numbers.items():
                lists[name].append(np.zeros(length))
                lists[name][-1][places] = values[span]
            rollouts.append(draw)
        chances = lists.pop("behaviour_logprob")
        known = np.isfinite(numbers["behaviour_logprob"][numbers["trainable"] != 0]).all()
        return cls(
            prompts=lists["prompts"],
            responses=lists["responses"],
            masks=[row.astype(np.int64) for row in lists["trainable"]],
            groups=[int(groups[draw]) for draw in rollouts],
            rewards=lists["rewards"],
            rollouts=rollouts,
            logprobs=[np.nan_to_num(row) for row in chances] if known else None,
            columns={name: lists[name] for name in columns},
            iteration=int(batch.column("iteration", "draw").max(initial=0)),
        )


def _joined(rows: Sequence[Any], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(row, dtype) for row in rows)])


def _numbered(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return dense numbers of keys in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(keys))
