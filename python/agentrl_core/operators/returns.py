"""Returns over time for tokens, steps or one agent's turns, and the optimal baseline of tokens.

The rows of a sequence are in time order. Sequences are given by `sequence_ids` (one id per row, in any order:
trajectories, or `keys.composite(trajectories, agents)` for the turns of each agent), by `offsets` (`int64[sequences +
1]`, the start of each and the end of the last), or by the shape: a table `[B, T]` has one sequence per row.

All functions treat interruptions and gaps in a sequence alike:

- `mask`: False for rows that the policy did not produce, such as a tool's tokens. Such a row gets 0 and is skipped: its
values, including its reward, are not read, and later rows reach earlier ones past it. - `ends`: True if later rows must
not reach a row. The last row of a sequence is always an end. - `bootstrap`: the value after an end: 0 if the episode
terminated, the value of the next state if it was truncated. `bootstrap=values` repeats the last value. For a truncated
step without advantage, set `ends` True, `mask` False and its value as bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

__all__ = ["discounted", "gae"]

_VARIANCE_EPS = 1e-8  # what `group.whiten` adds
_NOTHING = {np.dtype(kind): np.empty(0, kind) for kind in (np.float32, np.float64)}


@dataclass(slots=True)
class _SequenceRows:
    """Sorts columns into contiguous sequences, and results back into the order of the input."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offsets: NDArray[np.int64]
    order: NDArray[np.int64] | None
    mask: NDArray[np.bool_] | None
    ends: NDArray[np.bool_] | None
    bootstrap: NDArray[Any]
    first: str
    """Name of the first column, for messages."""

    @classmethod
    def of(
        cls,
        inputs: dict[str, object],
        sequence_ids: object | None,
        offsets: object | None,
        mask: object | None,
        ends: object | None,
        bootstrap: object | None,
    ) -> tuple[_SequenceRows, list[NDArray[Any]]]:
        """Read the sequences and the columns by name; all columns have the shape of the first one."""
        arrays = [columns.numbers(values, name, dimensions=(1, 2)) for name, values in inputs.items()]
        table = arrays[0]
        dtype, shape, same_form = table.dtype, table.shape, True
        for array in arrays[1:]:
            if array.dtype != dtype or array.shape != shape:
                dtype, same_form = np.result_type(*arrays), False
                break
        order: NDArray[np.int64] | None = None
        if sequence_ids is not None:
            if offsets is not None or table.ndim == 2:
                other = f"the rows of {next(iter(inputs))}" if offsets is None else "offsets"
                raise InvalidInputError(
                    f"sequence_ids is given, but {other} already separate the sequences; omit sequence_ids"
                )
            groups = columns.keys(sequence_ids, "sequence_ids", length=len(table), first=next(iter(inputs)))
            if len(groups) and (groups[1:] < groups[:-1]).any():
                order = np.argsort(groups, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(groups))]) if len(groups) else np.zeros(1, np.int64)
            starts = starts.astype(np.int64, copy=False)
        elif offsets is not None:
            starts = columns.integers(offsets, "offsets")
            if not len(starts):
                raise InvalidInputError(
                    "offsets is empty; give the start of each sequence, from 0, and the end of the last"
                )
        elif table.ndim == 2:
            starts = np.arange(len(table) + 1, dtype=np.int64) * table.shape[1]
        else:
            name = next(iter(inputs))
            raise InvalidInputError(
                f"{name} has no sequences; give sequence_ids, offsets, or a table with one row for each sequence"
            )
        rows = cls(shape, dtype, starts, order, None, None, _NOTHING[dtype], next(iter(inputs)))
        if mask is not None:
            rows.mask = rows.flags(mask, "mask")
        if ends is not None:
            rows.ends = rows.flags(ends, "ends")
        if bootstrap is not None:
            rows.bootstrap = rows.arranged(columns.numbers(bootstrap, "bootstrap", dimensions=(1, 2)), "bootstrap")
        if same_form and order is None and len(shape) == 1:
            return rows, arrays
        return rows, [rows.arranged(array, name) for name, array in zip(inputs, arrays, strict=True)]

    def flags(self, column: object, name: str) -> NDArray[np.bool_]:
        array = columns.column(column, name, dimensions=(1, 2))
        if array.dtype != np.bool_:
            raise InvalidInputError(f"{name} has dtype {array.dtype}; give booleans")
        return self._flat(array, name)

    def arranged(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Return a column in the common dtype, with rows in the order of sequences."""
        return self._flat(array if array.dtype == self.dtype else array.astype(self.dtype), name)

    def _flat(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        if array.shape != self.shape:
            raise InvalidInputError(
                f"{name} has shape {array.shape}, but {self.first} has {self.shape}; give both the same shape"
            )
        flat = array if array.ndim == 1 and array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
        return flat if self.order is None else flat[self.order]

    def back(self, results: NDArray[Any]) -> NDArray[Any]:
        """Return a result in the order and shape of the input."""
        if self.order is None:
            return results if len(self.shape) == 1 else results.reshape(self.shape)
        out = np.empty_like(results)
        out[self.order] = results
        return out

    def buffer(self, out: NDArray[Any] | None, parts: int) -> NDArray[Any] | None:
        """Return the array for the result of a kernel: that of the caller, or None to allocate one."""
        if out is None:
            return None
        shape = self.shape if parts == 1 else (parts, *self.shape)
        columns.output(out, shape, self.dtype)
        if not out.flags.c_contiguous:
            raise InvalidInputError("out is not C-contiguous; give a C-contiguous array, such as one of np.empty")
        if self.order is not None:
            raise InvalidInputError(
                "out is given, but the rows are not sorted by sequence; sort them by sequence_ids, or omit out"
            )
        return out.reshape(-1)


def discounted(
    rewards: object,
    sequence_ids: object | None = None,
    *,
    gamma: float,
    offsets: object | None = None,
    mask: object | None = None,
    ends: object | None = None,
    bootstrap: object | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Discounted reward-to-go: G_t = r_t + gamma * G_{t+1}, and r_t + gamma * bootstrap_t at an end.

    Args:
        rewards: n numbers, or `[B, T]`; 0 without a reward.
        sequence_ids: n ids; see the module for this and the others.
        gamma: discount, 0 to 1.
        offsets: `int64[sequences + 1]`, instead of ids.
        mask: n booleans: the policy's rows.
        ends: n booleans: rows that later rows do not reach.
        bootstrap: n numbers, read at ends.
        out: array of the result's shape and type to fill.

    Returns:
        The shape of `rewards`; `float32` for float32, else `float64`.

    Raises:
        InvalidInputError: shapes differ, a reward is not finite, or gamma is out of range.

    Example:
        >>> from agentrl_core import returns
        >>> returns.discounted([0.0, 5.0, 1.0], [7, 8, 7], gamma=0.5).tolist()
        [0.5, 5.0, 1.0]
    """
    rows, (reward_rows,) = _SequenceRows.of({"rewards": rewards}, sequence_ids, offsets, mask, ends, bootstrap)
    buffer = rows.buffer(out, 1)
    return rows.back(
        _core.returns.discounted(
            reward_rows, rows.offsets, rows.bootstrap, gamma, mask=rows.mask, ends=rows.ends, out=buffer
        )
    )


def gae(
    rewards: object,
    values: object,
    sequence_ids: object | None = None,
    *,
    gamma: float,
    lam: float,
    whiten: bool = False,
    offsets: object | None = None,
    mask: object | None = None,
    ends: object | None = None,
    bootstrap: object | None = None,
    out: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Generalised advantage estimates, and the returns A + V (the lambda-returns that a critic is trained on).

        delta_t = r_t + gamma * V_{t+1} - V_t,  A_t = delta_t + gamma * lam * A_{t+1}

    with t + 1 the next row of the policy; after an end V is the bootstrap and A is 0. From arXiv:1506.02438. With
    tokens as rows, `mask` the trained tokens and `whiten=True` it is verl's estimator; with steps as rows it is
    VL-DAC's, with `keys.composite(trajectories, agents)` MARFT's.

    Args:
        rewards: n numbers, or `[B, T]`; 0 without a reward.
        values: a critic's value of each row, in the same shape.
        sequence_ids: n ids; see the module for this and the others.
        gamma: discount, 0 to 1.
        lam: 0 (one step) to 1 (whole returns).
        whiten: whether to normalise the advantages of all the policy's rows to mean 0 and variance 1, bit for bit like
            `group.whiten` but faster. The returns do not change.
        offsets: `int64[sequences + 1]`, instead of ids.
        mask: n booleans: the policy's rows.
        ends: n booleans: rows that later rows do not reach.
        bootstrap: n numbers, read at ends.
        out: `[2, n]` or `[2, B, T]` to fill with both results.

    Returns:
        Advantages and returns, each in the shape of `rewards`.

    Raises:
        InvalidInputError: shapes differ, a number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core import returns
        >>> advantages, targets = returns.gae(
        ...     [[0.0, 0.0, 1.0]], [[0.5, 9.0, 0.25]], gamma=1.0, lam=0.5, mask=[[True, False, True]]
        ... )
        >>> advantages.tolist(), targets.tolist()
        ([[0.125, 0.0, 0.75]], [[0.625, 0.0, 1.0]])
    """
    inputs = {"rewards": rewards, "values": values}
    rows, (reward_rows, expected) = _SequenceRows.of(inputs, sequence_ids, offsets, mask, ends, bootstrap)
    results = _core.returns.gae(
        reward_rows,
        expected,
        rows.offsets,
        rows.bootstrap,
        gamma,
        lam,
        whiten=_VARIANCE_EPS if whiten else None,
        mask=rows.mask,
        ends=rows.ends,
        out=rows.buffer(out, 2),
    )
    return rows.back(results[: len(reward_rows)]), rows.back(results[len(reward_rows) :])


def v_trace(
    rewards: object,
    values: object,
    log_ratios: object,
    sequence_ids: object | None = None,
    *,
    gamma: float,
    lam: float = 1.0,
    rho_at_most: float = 1.0,
    c_at_most: float = 1.0,
    offsets: object | None = None,
    mask: object | None = None,
    ends: object | None = None,
    bootstrap: object | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Off-policy advantages and value targets (V-trace).

        rho = min(rho_at_most, e^l),  c = lam * min(c_at_most, e^l),  delta_t = r_t + gamma * V_{t+1} - V_t
        v_t = V_t + rho_t * delta_t + gamma * c_t * (v_{t+1} - V_{t+1}),  A_t = rho_t * (r_t + gamma * v_{t+1} - V_t)

    From IMPALA, arXiv:1802.01561. With l = 0 and caps of 1 the targets are the returns of `gae`.

    Args:
        rewards: n numbers, or `[B, T]`; 0 without a reward.
        values: a critic's value of each row.
        log_ratios: l, the log-probability under the policy minus that under the behaviour policy.
        sequence_ids: n ids; see the module for this and the others.
        gamma: discount, 0 to 1.
        lam: 0 to 1.
        rho_at_most: largest weight of a difference, at least 0.
        c_at_most: largest weight of later rows, at least 0.
        offsets: `int64[sequences + 1]`, instead of ids.
        mask: n booleans: the policy's rows.
        ends: n booleans: rows that later rows do not reach.
        bootstrap: n numbers, read at ends.

    Returns:
        Advantages A and targets v, each in the shape of `rewards`.

    Raises:
        InvalidInputError: shapes differ, a number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core.operators.returns import v_trace
        >>> advantages, targets = v_trace([[0.0, 1.0]], [[0.5, 0.5]], [[0.0, 0.0]], gamma=1.0)
        >>> advantages.tolist(), targets.tolist()
        ([[0.5, 0.5]], [[1.0, 1.0]])
    """
    inputs = {"rewards": rewards, "values": values, "log_ratios": log_ratios}
    rows, (reward_rows, expected, ratios) = _SequenceRows.of(inputs, sequence_ids, offsets, mask, ends, bootstrap)
    results = _core.returns.v_trace(
        reward_rows,
        expected,
        ratios,
        rows.offsets,
        rows.bootstrap,
        gamma,
        lam,
        rho_at_most,
        c_at_most,
        mask=rows.mask,
        ends=rows.ends,
    )
    return rows.back(results[: len(reward_rows)]), rows.back(results[len(reward_rows) :])


def n_step(
    rewards: object,
    values: object,
    sequence_ids: object | None = None,
    *,
    gamma: float,
    steps: int,
    offsets: object | None = None,
    mask: object | None = None,
    ends: object | None = None,
    bootstrap: object | None = None,
) -> NDArray[Any]:
    """Compute returns over a fixed number of steps: R_t = sum_{k < steps} gamma^k r_{t+k} + gamma^steps V_{t+steps}.

    If an end comes first, the sum stops there with the bootstrap as V.

    Args:
        rewards: n numbers, or `[B, T]`; 0 without a reward.
        values: a critic's value of each row.
        sequence_ids: n ids; see the module for this and the others.
        gamma: discount, 0 to 1.
        steps: at least 1.
        offsets: `int64[sequences + 1]`, instead of ids.
        mask: n booleans: the policy's rows.
        ends: n booleans: rows that later rows do not reach.
        bootstrap: n numbers, read at ends.

    Returns:
        The shape of `rewards`.

    Raises:
        InvalidInputError: shapes differ, a number is not finite, or an option is out of range.

    Example:
        >>> from agentrl_core.operators.returns import n_step
        >>> n_step([[1.0, 1.0, 1.0]], [[8.0, 8.0, 8.0]], gamma=0.5, steps=2).tolist()
        [[3.5, 1.5, 1.0]]
    """
    inputs = {"rewards": rewards, "values": values}
    rows, (reward_rows, expected) = _SequenceRows.of(inputs, sequence_ids, offsets, mask, ends, bootstrap)
    sums = _core.returns.n_step(
        reward_rows,
        expected,
        rows.offsets,
        rows.bootstrap,
        gamma,
        steps,
        mask=rows.mask,
        ends=rows.ends,
    )
    return rows.back(sums)


def optimal_token_baseline(
    returns: object,
    energies: object,
    group_ids: object,
    *,
    offsets: object | None = None,
    mask: object | None = None,
    align: Literal["policy", "sequence"] = "policy",
    eps: float = 1e-8,
    zero_tail: bool = True,
) -> NDArray[np.float64]:
    """Subtract from returns the baseline of least gradient variance, at every token position of a group.

        W_it = sum_{j <= t} w_ij,  b_t = sum_i G_it W_it / (sum_i W_it + eps),  A_it = G_it - b_t

    over the sequences i of the group that have a trained token at position t. A group with one sequence has b = 0. The
    rule of verl 0.9.1: `optimal_token_baseline` (`align="sequence"`) and `tir_optimal_token_baseline` (`policy`).

    Args:
        returns: G, n numbers or `[B, T]`: the reward-to-go of each token (`discounted`).
        energies: w of each token, the squared norm of its score: 1 - 2 * p + sum of p^2 over the vocabulary, with p the
            token's probability; times the square of an importance weight, if there is one.
        group_ids: the group of each sequence, one id a sequence.
        offsets: `int64[sequences + 1]`, unless `returns` is a table.
        mask: n booleans: trained tokens; the others get 0.
        align: tokens at the same position: the k-th trained token (`policy`), or the k-th token (`sequence`).
        eps: added to the sum of weights.
        zero_tail: whether the tail of the longest sequence beyond the second longest gets baseline 0.

    Returns:
        `float64` in the shape of `returns`.

    Raises:
        InvalidInputError: shapes differ, a number is not finite, or an option is not possible.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.operators.returns import optimal_token_baseline
        >>> to_come, energies = [4.0, 4.0, 0.0], [1.0, 1.0, 3.0]
        >>> optimal_token_baseline(to_come, energies, ["a", "a"], offsets=[0, 2, 3], eps=0.0).tolist()
        [3.0, 4.0, -1.0]
    """
    inputs = {"returns": returns, "energies": energies}
    rows, (to_come, norms) = _SequenceRows.of(inputs, None, offsets, mask, None, None)
    if rows.dtype != np.float64:
        to_come, norms = to_come.astype(np.float64), norms.astype(np.float64)
    advantages = _core.returns.optimal_token_baseline(
        to_come,
        norms,
        rows.offsets,
        columns.ids(group_ids, "group_ids", length=len(rows.offsets) - 1, first="the list of sequences"),
        align,
        eps,
        zero_tail,
        rows.mask,
    )
    return rows.back(columns.representable(advantages))
