"""Advantages from returns of steps or tokens, with a critic (GAE) or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, step, token
from agentrl_core.component.rows import last_of_chain
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import returns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch

_POLICY_AND_REFERENCE = (token("behaviour_logprob"), token("reference_logprob", model="reference"))


@dataclass(frozen=True)
class Discounted(BatchComponent):
    """Discounted return of each step or token: the discounted sum of its own and later rewards.

        advantage = A_t = r_t + gamma * A_{t+1}

    `GroupRelative` before it normalises rewards (then use `column="advantage"`), after it returns. Together they cover
    most multi-turn estimators. A row without reward (NaN) has 0. Untrained tokens are skipped: they get 0, and later
    rewards flow past them, discounted once per trained token. Sources: REINFORCE++ arXiv:2501.03262 (`column="",
    outcome="score", level="token"`, then whitening); IPA arXiv:2512.24873 (the defaults); EAPO arXiv:2511.07327
    (`column="", outcome="score", gamma=0.995`, then `GroupRelative(column="advantage", level="step")`); GiGPO
    arXiv:2505.10978 (`gamma=0.95`, then `GroupRelative` over steps from the same state).

    Args:
        column: reward column of the rows, or empty: none.
        outcome: a draw column whose value is added to the last row of each draw, such as `score`, or empty: none.
        level: level of the rows: `step` or `token`.
        gamma: discount from row to row, 0 to 1.
        kl_coefficient: beta of `beta * (log pi - log pi_ref)`, subtracted from the reward of each token, at least 0;
            `level="token"` only.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import Discounted
        >>> Discounted(outcome="score").needs
        (step('reward'), draw('score'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = column_name("reward", level="level", optional=True)
    outcome: str = column_name("", level="draw", optional=True)
    level: Literal["step", "token"] = "step"
    gamma: float = option(1.0, at_least=0, at_most=1)
    kl_coefficient: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Require a reward, and level `token` for a KL coefficient."""
        self.require(bool(self.column or self.outcome), "column", "name a reward here or in outcome")
        self.require(
            self.kl_coefficient == 0.0 or self.level == "token", "kl_coefficient", 'choose level="token", or give 0'
        )

    def own_needs(self) -> Iterable[Column]:
        """Return the columns to read besides the rewards: behaviour and reference log-probs for a KL penalty."""
        return _POLICY_AND_REFERENCE if self.kl_coefficient > 0.0 else ()

    def own_makes(self) -> Iterable[Column]:
        """Return the column that is made: `advantage` at `level`."""
        return (Column(self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on the rows of `level`."""
        rows = Rows(batch, self.level)
        rewards = np.nan_to_num(rows.values(self.column), nan=0.0) if self.column else np.zeros(len(rows))
        if self.outcome:
            rewards = rewards + np.where(rows.last, np.nan_to_num(rows.values(self.outcome), nan=0.0), 0.0)
        if self.kl_coefficient > 0.0:
            rewards = rewards - self.kl_coefficient * _divergence(rows)
        rewards = np.where(rows.valid, rewards, 0.0)
        return rows.write(advantage=returns.discounted(rewards, rows.draws, gamma=self.gamma, mask=rows.valid))


@dataclass(frozen=True)
class Gae(BatchComponent):
    """Generalised advantage estimates (GAE) of tokens or steps, with a critic's values.

        advantage = A_t = delta_t + gamma * lam * A_{t+1},  delta_t = r_t + gamma * V_{t+1} - V_t,  return = A_t + V_t

    Untrained tokens (tool results inside an action) are skipped: later values flow past them. Rows of draws without a
    score get 0. Sources: GAE arXiv:1506.02438, PPO arXiv:1707.06347 (tokens); VL-DAC arXiv:2508.04280 (`level="step",
    gamma=0.99, lam=0.95, at_truncation="drop"`); MARFT arXiv:2504.16129 (`level="agent"`: steps of all agents of an
    episode are one chain).

    Args:
        level: level of the rows: `token`, `step`, or `agent`: steps of all agents of an episode, in the order of the
            step column `joint_move`, and of the agents within one move. `rollout.SelfPlay` records it. An episode
            without it is ordered by (step, agent) if all its agents have as many steps.
        gamma: discount from row to row, 0 to 1.
        lam: lambda, 0 to 1.
        column: reward column of the rows, such as `reward`, or empty: none.
        outcome: a draw column whose value is added to the last row of a draw (of an episode, at level `agent`), or
            empty.
        at_truncation: next value after the last row of a truncated trajectory: 0, as at a true end (`terminate`, verl),
            the column `next_value` (`bootstrap`), its own value again (`repeat`, T-PPO), or the row gets no advantage
            and its own value as return (`drop`, VL-DAC).
        kl_coefficient: beta of `beta * (log pi - log pi_ref)`, subtracted from the reward of each token, at least 0;
            `level="token"` only.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: at level `agent`, an episode has no `joint_move`, and its agents have unequal steps.

    Example:
        >>> from agentrl_core.advantage import Gae
        >>> Gae(level="step", column="reward", outcome="").needs
        (step('value'), step('reward'))
    """

    phase: ClassVar[str] = "advantage"

    level: Literal["token", "step", "agent"] = "token"
    gamma: float = option(1.0, at_least=0, at_most=1)
    lam: float = option(1.0, at_least=0, at_most=1)
    column: str = ""
    outcome: str = "score"
    at_truncation: Literal["terminate", "bootstrap", "repeat", "drop"] = "terminate"
    kl_coefficient: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Require a reward, and level `token` for a KL coefficient."""
        self.require(bool(self.column or self.outcome), "column", "name a reward here or in outcome")
        self.require(
            self.kl_coefficient == 0.0 or self.level == "token", "kl_coefficient", 'choose level="token", or give 0'
        )

    def own_needs(self) -> Iterable[Column]:
        """Yield the columns to read: values, rewards, keys of agents, columns for truncation, log-probs for the KL."""
        level = self._rows_level
        yield Column(level, "value", "critic")
        yield from (Column(level, name) for name in (self.column, self.outcome) if name)
        if self.level == "agent":
            yield from (step("episode_id"), step("step"), step("agent"))
        if self.at_truncation != "terminate":
            yield Column(level, "truncated")
        if self.at_truncation == "bootstrap":
            yield Column(level, "next_value", "critic")
        if self.kl_coefficient > 0.0:
            yield from _POLICY_AND_REFERENCE

    def own_makes(self) -> Iterable[Column]:
        """Return the columns that are made: `advantage` and `return` of each row."""
        return (Column(self._rows_level, "advantage"), Column(self._rows_level, "return"))

    @property
    def _rows_level(self) -> Literal["token", "step"]:
        return "token" if self.level == "token" else "step"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `return`."""
        rows = Rows(batch, self._rows_level)
        order, chains = np.arange(len(rows)), rows.draws
        if self.level == "agent":
            chains = rows.keys("episode_id")
            order = np.lexsort((rows.values("agent"), _moves(batch, rows, chains), chains))
        chains, valid = chains[order], rows.valid[order]
        values = np.where(valid, rows.values("value")[order], 0.0)
        bootstrap, policy = None, valid
        if self.at_truncation != "terminate":
            is_truncated = rows.flags("truncated")[order]
            after = rows.values("next_value")[order] if self.at_truncation == "bootstrap" else values
            bootstrap = np.where(is_truncated & valid, after, 0.0)
            if self.at_truncation == "drop":
                policy = valid & ~(is_truncated & last_of_chain(chains, valid))
        advantage, returned = np.zeros(len(rows)), np.zeros(len(rows))
        gain, target = returns.gae(
            self._rewards(rows, order, chains),
            values,
            chains,
            gamma=self.gamma,
            lam=self.lam,
            mask=policy,
            bootstrap=bootstrap,
        )
        advantage[order], returned[order] = gain, np.where(policy, target, values)
        columns = {"advantage": advantage, "return": returned}
        return rows.write(**{name: np.where(rows.valid, values, 0.0) for name, values in columns.items()})

    def _rewards(self, rows: Rows, order: NDArray[np.int64], chains: NDArray[np.uint32]) -> NDArray[np.float64]:
        valid = rows.valid[order]
        rewards = np.zeros(len(rows))
        if self.column:
            rewards = np.nan_to_num(rows.values(self.column)[order], nan=0.0)
        if self.outcome:
            last = last_of_chain(chains, valid)
            rewards = rewards + np.where(last, np.nan_to_num(rows.values(self.outcome)[order], nan=0.0), 0.0)
        if self.kl_coefficient > 0.0:
            rewards = rewards - self.kl_coefficient * _divergence(rows)[order]
        return np.where(valid, rewards, 0.0)


def _moves(batch: Batch, rows: Rows, episodes: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the position of each step in the order of moves of its episode."""
    turns = rows.values("step")
    moves = rows.values("joint_move") if batch.has("joint_move", "step") else np.full(len(rows), np.nan)
    known = np.isfinite(moves)
    agents = rows.values("agent").astype(np.int64)
    last = int(agents.max(initial=0)) + 1
    counts = np.bincount(episodes.astype(np.int64) * last + agents, minlength=(int(episodes.max(initial=0)) + 1) * last)
    counts = counts.reshape(-1, last)
    most = counts.max(axis=1, keepdims=True)
    uneven = ((counts > 0) & (counts < most)).any(axis=1)
    partly = np.bincount(episodes, known, minlength=len(counts)) > 0
    is_missing = ~known & (uneven | partly)[episodes]
    if is_missing.any():
        row = int(np.flatnonzero(is_missing)[0])
        place = f"joint_move of step {row} is missing (draw {int(rows.draws[row])})"
        if partly[episodes[row]]:
            raise InvalidInputError(f"{place}, but other steps of its episode have one; record it for every step")
        raise InvalidInputError(
            f"{place}, and the agents of its episode have different numbers of steps, so the order of moves is "
            "unknown; collect with rollout.SelfPlay, or record the step fact 'joint_move', counted from 0 over all "
            "agents of an episode"
        )
    return np.where(known, moves, turns)


def _divergence(rows: Rows) -> NDArray[np.float64]:
    """Return the log-ratio of the behaviour policy to the reference for each token."""
    return rows.values("behaviour_logprob") - rows.values("reference_logprob")
