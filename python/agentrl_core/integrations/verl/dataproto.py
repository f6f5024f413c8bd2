"""Convert verl's `DataProto` to a `Batch` and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core._util.lazy_torch import torch
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError
from agentrl_core.integrations.sequences import Sequences

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = {
    "old_log_probs": "recomputed_logprob",
    "ref_log_prob": "reference_logprob",
    "values": "value",
    "advantages": "advantage",
}
"""Token columns of a `Batch`, by their names in verl."""

_REWARDS = ("token_level_rewards", "token_level_scores", "rm_scores")


def from_dataproto(data: Any, *, iteration: int = 0) -> Batch:
    """Return the rollouts of a `DataProto` as a batch: one draw for each row, in the groups of its `uid`.

    Tokens, response mask, rewards at tokens and rollout log-probs become the tables; `old_log_probs`, `ref_log_prob`,
    `values` and `advantages` become the columns `recomputed_logprob`, `reference_logprob`, `value` and `advantage`.
    Rows without rollout log-probs have no log-probs in the batch.

    Args:
        data: a `DataProto` with `prompts` (padded on the left), `responses` (on the right) and `attention_mask`;
            `response_mask` if not all response tokens were sampled; one of `token_level_rewards`, `token_level_scores`,
            `rm_scores`.
        iteration: the iteration of the batch.

    Raises:
        InvalidInputError: a field is missing.

    Example:
        >>> import numpy as np, torch
        >>> from agentrl_core.integrations import verl
        >>> from verl import DataProto
        >>> data = DataProto.from_dict(
        ...     tensors={
        ...         "prompts": torch.tensor([[0, 5], [4, 5]]),
        ...         "responses": torch.tensor([[6, 7], [8, 0]]),
        ...         "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]),
        ...         "rm_scores": torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
        ...     },
        ...     non_tensors={"uid": np.array(["a", "a"], dtype=object)},
        ... )
        >>> verl.from_dataproto(data)
        Batch(2 draws in 1 groups, 2 trajectories, 4 nodes)
    """
    fields = {name: data.batch[name] for name in data.batch.keys()}  # noqa: SIM118 - a TensorDict iterates over rows
    for name in ("prompts", "responses", "attention_mask"):
        if name not in fields:
            raise InvalidInputError(
                f"data has no {name!r} (it has: {', '.join(fields)}); give prompts, responses and attention_mask"
            )
    if "uid" not in data.non_tensor_batch:
        raise InvalidInputError("data has no 'uid', the group of each row; give non_tensors={'uid': ...}")
    rewards = next((name for name in _REWARDS if name in fields), None)
    if rewards is None:
        raise InvalidInputError(f"data has no rewards; give one of {', '.join(_REWARDS)}")
    width = fields["prompts"].shape[1]
    attention = _array(fields["attention_mask"]) != 0
    before, inside = attention[:, :width], attention[:, width:]

    def of(name: str) -> list[Any]:
        return [values[mask] for values, mask in zip(_array(fields[name]), inside, strict=True)]

    masks = of("response_mask") if "response_mask" in fields else [mask[mask] for mask in inside]
    return Sequences(
        prompts=[values[mask] for values, mask in zip(_array(fields["prompts"]), before, strict=True)],
        responses=of("responses"),
        masks=masks,
        groups=data.non_tensor_batch["uid"].tolist(),
        rewards=of(rewards),
        logprobs=of("rollout_log_probs") if "rollout_log_probs" in fields else None,
        columns={column: of(name) for name, column in COLUMNS.items() if name in fields},
        iteration=iteration,
    ).batch


def to_dataproto(batch: Batch, *, pad: int = 0) -> Any:
    """Return a batch as a `DataProto`, a row for each context of each draw; prompts are padded left, responses right.

    It has `prompts`, `responses`, `input_ids`, `attention_mask`, `position_ids`, `response_mask`, `token_level_scores`
    and `token_level_rewards`; `rollout_log_probs` if all are known; the columns in `from_dataproto` that the batch has;
    and `uid` and `rollout` (the draw) as texts.

    Args:
        batch: the batch.
        pad: id of the padding token.

    Raises:
        InvalidInputError: a step has no tokens.
        MissingDependencyError: verl is not installed.
    """
    try:
        from verl import DataProto
    except ImportError as error:
        raise MissingDependencyError(
            f"verl cannot be imported ({error}); install verl 0.9 by its own instructions"
        ) from error
    columns = {name: column for name, column in COLUMNS.items() if batch.has(column, "token")}
    rows = Sequences.of(batch, columns=list(columns.values()))
    prompts = _padded(rows.prompts, pad, left=True)
    responses = _padded(rows.responses, pad)
    before = _padded([np.ones(len(row), np.int64) for row in rows.prompts], 0, left=True)
    attention = torch.cat([before, _padded([np.ones(len(row), np.int64) for row in rows.responses], 0)], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": _padded(rows.masks, 0),
        "token_level_scores": _padded(rows.rewards, 0).float(),
    }
    tensors["token_level_rewards"] = tensors["token_level_scores"].clone()
    if rows.logprobs is not None:
        tensors["rollout_log_probs"] = _padded(rows.logprobs, 0).float()
    tensors |= {name: _padded(rows.columns[column], 0).float() for name, column in columns.items()}
    names = {"uid": rows.groups, "rollout": rows.rollouts or ()}
    return DataProto.from_dict(
        tensors=tensors,
        non_tensors={name: np.array([str(value) for value in values], object) for name, values in names.items()},
    )


def _array(values: Tensor) -> Any:
    return values.detach().cpu().numpy()


def _padded(rows: Any, fill: float, *, left: bool = False) -> Tensor:
    """Return rows as one padded tensor."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(np.array(row)) for row in rows],
        batch_first=True,
        padding_value=fill,
        padding_side="left" if left else "right",
    )
