"""Rewards of steps and tokens: information gain, implicit rewards of a model, first visits, checklists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, step, token
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns, group, keys, returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class InformationGain(BatchComponent):
    """Pays a step for what it added to the likelihood of the right answer: gain = P_k - P_{k-1}, P = exp(l) or l.

    l is the mean log-probability of the right answer's tokens when it is probed: the step column `answer_logprob` after
    each step, the draw column `answer_logprob_before` before the first. The last step ends with the answer that the
    outcome pays, so it has no gain (NaN), and neither has a draw that was not probed after every step. The score stays
    what it is: `NormalisedReturns(column="gain", outcome="score")` puts both together. Source: IGPO, arXiv:2510.14967.

    Args:
        kind: P is a `probability`, or a `log_probability` (the newer public script).

    Example:
        >>> from agentrl_core.reward import InformationGain
        >>> InformationGain().makes
        (step('gain'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        step("answer_logprob", model="policy"),
        draw("answer_logprob_before", model="policy"),
    )
    makes: ClassVar[tuple[Column, ...]] = (step("gain"),)

    kind: Literal["probability", "log_probability"] = "probability"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `gain` on steps."""
        rows = Rows(batch, "step")
        offsets = batch.offsets("step")
        probes, before = rows.values("answer_logprob"), Rows(batch, "draw").values("answer_logprob_before")
        gaps = np.bincount(rows.draws, weights=~np.isfinite(probes), minlength=batch.num_draws) > 0.0
        probed = np.isfinite(before) & ~gaps
        at_step = probed[rows.draws]
        lengths = np.append(0, np.cumsum(np.diff(offsets)[probed]))
        gains = np.full(len(rows), np.nan)
        gains[at_step] = information_gain(probes[at_step], lengths, before[probed], kind=self.kind)
        gains[offsets[1:][np.diff(offsets) > 0] - 1] = np.nan
        return rows.write(gain=gains)


@dataclass(frozen=True)
class ImplicitProcess(BatchComponent):
    """Reward tokens or steps implicitly by a model: process_reward = beta * (log p_model - log p_reference).

    Two node_token columns hold the log-probs: `reward_model_logprob` and `reward_reference_logprob`
    (`annotate(batch, name, model)`); the reference is frozen (PRIME) or a snapshot of the policy (iStar). Tokens that
    are not trained have no reward (NaN). Sources: PRIME, arXiv:2502.01456; iStar, arXiv:2509.19199 (`level="step"`).

    Args:
        beta: factor.
        level: `token`: each trained token except the last of a draw, which gets the outcome; `step`: the sum of a step;
            `draw`: the sum of a draw, at its last trained token.
        scale: `max_return` divides by the largest absolute sum of rewards to come, over the batch.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import ImplicitProcess
        >>> ImplicitProcess(level="step").makes
        (step('process_reward'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        token("reward_model_logprob", model="reward_model"),
        token("reward_reference_logprob", model="reward_reference"),
    )

    beta: float = option(0.05, above=0)
    level: Literal["token", "step", "draw"] = "token"
    scale: Literal["none", "max_return"] = "none"

    def own_makes(self) -> Iterable[Column]:
        """The reward of each token or step."""
        yield step("process_reward") if self.level == "step" else token("process_reward")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `process_reward`."""
        tokens = Rows(batch, "token")
        trained = tokens.flags("trainable")
        model, reference = (
            np.where(trained, tokens.values(name), 0.0) for name in ("reward_model_logprob", "reward_reference_logprob")
        )
        rows, offsets = tokens, None
        if self.level != "token":
            offsets = batch.offsets("token")
            if self.level == "step":
                rows = Rows(batch, "step")
            else:
                offsets = offsets[batch.offsets("step")]
        rewards = implicit_rewards(model, reference, beta=self.beta, offsets=offsets)
        if self.level == "draw":
            rewards = np.where(tokens.last, rewards[tokens.draws], np.nan)
        elif self.level == "token":
            rewards = np.where(trained & ~tokens.last, rewards, np.nan)
        if self.scale == "max_return":
            to_come = returns.discounted(np.nan_to_num(rewards, nan=0.0), rows.draws, gamma=1.0)
            largest = float(np.abs(to_come).max(initial=0.0))
            rewards = rewards / largest if largest > 0.0 else rewards
        return rows.write(process_reward=rewards)


@dataclass(frozen=True)
class FirstVisits(BatchComponent):
    """Pays for what was not seen before: step_score += coefficient where a key occurs first in its draw.

    So a step is paid what it adds to F, the number of different keys that a trajectory has visited, a coverage
    function. `OutcomeScore(level="step")` begins the score of steps; one that is unknown counts 0. Source: submodular
    reinforcement learning, arXiv:2307.13372.

    Args:
        key: comma-joined step columns: what is covered, such as states, tools or documents.
        coefficient: of a first visit.

    Raises:
        RecipeError: `key` is empty.

    Example:
        >>> from agentrl_core.reward import FirstVisits
        >>> FirstVisits(coefficient=0.1).makes
        (step('step_score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("step_score"),)
    makes: ClassVar[tuple[Column, ...]] = (step("step_score"),)

    key: str = column_name("state_key", level="step")
    coefficient: float = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `step_score` on steps."""
        rows = Rows(batch, "step")
        visited = keys.composite(rows.draws, rows.keys(self.key))
        first = np.zeros(len(rows), dtype=np.bool_)
        first[np.unique(visited, return_index=True)[1]] = True
        scores = rows.values("step_score")
        return rows.write(step_score=np.where(first, np.nan_to_num(scores, nan=0.0) + self.coefficient, scores))


@dataclass(frozen=True)
class Checklist(BatchComponent):
    """Scores a trajectory by the items of checklists that its steps earn: (1 / turns) * sum of w_c over earned items c.

    The step columns say what a judge found: `satisfied.0`, `satisfied.1`, ... whether the item holds after the step
    (NaN: the turn has no such item), `item_weight.c` its weight, `item_needs.c` the items it depends on, as the sum of
    2^d, and `turn`, whose steps stand together. An item is eligible at a step if what it depends on was satisfied
    before and it was not; the first step after which it is satisfied earns it, if it was eligible. A draw with a step
    whose column `judge_failed` is 1 has no score. Besides `score`, it makes `turn_reward`, what the step's turn earned,
    and for each item `item_reward.c` (1 where it is eligible and this or a later step of the turn satisfies it) and
    `item_eligible.c`, for `advantage.ChecklistRelative`. Source: CM2, arXiv:2602.12268.

    Args:
        items: how many items a turn can have.
        delay: an item counts delay ** (steps of its turn that it was eligible before).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import Checklist
        >>> Checklist(items=1).makes
        (draw('score'), step('turn_reward'), step('item_reward.0'), step('item_eligible.0'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("turn"), step("judge_failed"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), step("turn_reward"))

    items: int = option(at_least=1, at_most=62)
    delay: float = option(1.0, at_least=0, at_most=1)

    def own_needs(self) -> Iterable[Column]:
        """What the judge found, and what the items are."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("satisfied", "item_weight", "item_needs"))

    def own_makes(self) -> Iterable[Column]:
        """What each step earned of each item."""
        for item in range(self.items):
            yield from (step(f"{name}.{item}") for name in ("item_reward", "item_eligible"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes`."""
        rows, draws = Rows(batch, "step"), Rows(batch, "draw")
        turns = keys.composite(rows.draws, rows.keys("turn"))
        starts = np.flatnonzero(np.append(True, turns[1:] != turns[:-1])[: len(turns)])
        if len(starts) != len(np.unique(turns)):
            raise InvalidInputError(
                "column 'turn' comes back to an earlier turn of the draw; number its turns in order"
            )
        satisfied, weight = self._matrix(rows, "satisfied"), self._matrix(rows, "item_weight")
        known = np.isfinite(satisfied)
        needs = np.nan_to_num(self._matrix(rows, "item_needs"), nan=0.0).astype(np.int64)[starts]
        credit = checklist(
            known & (satisfied == 1.0),
            ((needs[:, :, None] >> np.arange(self.items)) & 1).astype(np.bool_),
            np.append(starts, len(rows)),
            delay=self.delay,
        )
        eligible = credit.eligible & known
        of_step = np.where(known, credit.earned * np.nan_to_num(weight, nan=0.0), 0.0).sum(axis=1)
        of_turn = group.sums(of_step, turns)
        # Turns follow each other, so their numbers stand in order of draws.
        draw_of_turn = rows.draws[starts]
        total = np.bincount(draw_of_turn, weights=of_turn, minlength=len(draws))
        count = np.bincount(draw_of_turn, minlength=len(draws))
        failed = np.bincount(rows.draws, weights=rows.flags("judge_failed"), minlength=len(draws)) > 0.0
        items = {f"item_reward.{item}": credit.backfilled[:, item] for item in range(self.items)}
        items |= {f"item_eligible.{item}": eligible[:, item] for item in range(self.items)}
        batch = rows.write(turn_reward=of_turn[turns], **items)
        return Rows(batch, "draw").write(score=np.where(failed, np.nan, total / np.maximum(count, 1)))

    def _matrix(self, rows: Rows, name: str) -> NDArray[np.float64]:
        return np.stack([rows.values(f"{name}.{item}") for item in range(self.items)], axis=1)


class ChecklistRewards(NamedTuple):
    """The rewards of items at steps.

    Attributes:
        earned: `float64[steps, items]`, at most one positive entry for an item of a turn.
        backfilled: `float64[steps, items]`, the same at every eligible step before the item was earned.
        eligible: `bool[steps, items]`, whether the step could earn the item.
    """

    earned: NDArray[np.float64]
    backfilled: NDArray[np.float64]
    eligible: NDArray[np.bool_]


def information_gain(
    answer_logprobs: object,
    offsets: object,
    before: object,
    *,
    kind: Literal["probability", "log_probability"] = "probability",
) -> NDArray[Any]:
    """Gain of each step in the likelihood of the right answer: g_k = P_k - P_{k-1}. From IGPO, arXiv:2510.14967.

    P is exp(l) or l, with l_k the mean log-probability of the answer's tokens appended after step k.

    Args:
        answer_logprobs: l_k of every step, trajectory after trajectory.
        offsets: n + 1 whole numbers; the steps of trajectory i are `answer_logprobs[offsets[i]:offsets[i + 1]]`.
        before: n numbers, l before the first step.
        kind: the difference of probabilities, or of log-probabilities (the newer public script).

    Returns:
        As long as `answer_logprobs`; float32 if it is, else float64.

    Raises:
        InvalidInputError: lengths differ, or a log-probability is above 0 or not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.information_gain([-2.0, -1.0], [0, 2], [-2.5], kind="log_probability").tolist()
        [0.5, 1.0]
    """
    logprobs = columns.numbers(answer_logprobs, "answer_logprobs")
    gains = _core.reward.information_gain(
        columns.doubles(logprobs, "answer_logprobs"),
        columns.integers(offsets, "offsets"),
        columns.doubles(before, "before"),
        kind,
    )
    return columns.like(gains, logprobs)


def implicit_rewards(
    logprobs: object, reference_logprobs: object, *, beta: float = 0.05, offsets: object | None = None
) -> NDArray[Any]:
    """Implicit rewards of a model: beta * (log pi(token) - log pi_ref(token)), of tokens or summed over rows.

    Of tokens: PRIME, arXiv:2502.01456; of steps: iStar, arXiv:2509.19199.

    Args:
        logprobs: n numbers, of the reward model.
        reference_logprobs: n numbers, of its reference.
        beta: scale.
        offsets: m + 1 whole numbers: the sum over each row (step or trajectory); None: each token by itself.

    Returns:
        n or m numbers; float32 for float32 logprobs, else float64.

    Raises:
        InvalidInputError: lengths differ, or a number is not finite.

    Example:
        >>> from agentrl_core import reward
        >>> reward.implicit_rewards([-1.0, -2.0, -1.0], [-2.0, -1.0, -3.0], beta=0.5, offsets=[0, 2, 3]).tolist()
        [0.0, 1.0]
    """
    own = columns.numbers(logprobs, "logprobs")
    rewards = _core.reward.implicit(
        columns.doubles(own, "logprobs"),
        columns.doubles(reference_logprobs, "reference_logprobs", length=len(own)),
        None if offsets is None else columns.integers(offsets, "offsets"),
        beta,
    )
    return columns.like(rewards, own)


def checklist(satisfied: object, dependencies: object, offsets: object, *, delay: float = 1.0) -> ChecklistRewards:
    """Credit the items of a checklist to the steps of turns. From CM2, arXiv:2602.12268.

    An item is eligible at a step if the items it depends on were satisfied before the step and it was not; the first
    step after which it is satisfied earns it, if it was eligible there, times delay ** (steps it was eligible before).

    Args:
        satisfied: `bool[steps, items]`, the verdicts after each step, turn after turn.
        dependencies: `bool[items, items]`, True if the row's item depends on the column's; `bool[n, items, items]` if
            turns differ.
        offsets: n + 1 whole numbers; the steps of turn i are `satisfied[offsets[i]:offsets[i + 1]]`.
        delay: from 0 to 1.

    Raises:
        InvalidInputError: shapes do not fit, an item depends on itself, or `delay` is out of range.

    Example:
        >>> from agentrl_core import reward
        >>> rewards = reward.checklist([[False, False], [True, False], [True, True]], [[0, 0], [1, 0]], [0, 3])
        >>> rewards.earned.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    verdicts = columns.marks(satisfied, "satisfied", dimensions=(2,))
    needs = columns.marks(dependencies, "dependencies", dimensions=(2, 3))
    items = verdicts.shape[1]
    if needs.shape[-2:] != (items, items):
        raise InvalidInputError(
            f"dependencies has shape {needs.shape}, but satisfied has {items} items; give [items, items]"
        )
    earned, backfilled, eligible = _core.reward.checklist(
        verdicts.ravel(), items, needs.ravel(), columns.integers(offsets, "offsets"), delay
    )
    shape = verdicts.shape
    return ChecklistRewards(earned.reshape(shape), backfilled.reshape(shape), eligible.reshape(shape))
