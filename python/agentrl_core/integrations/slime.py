"""Recipes in slime: functions for its custom paths that compute the credit of whole rollouts, and the loss.

Create them in your own module on slime's path, and name them in slime's arguments:

    # my_run.py
    from agentrl_core import recipes
    from agentrl_core.integrations.slime import Functions

    functions = Functions(recipes.GIGPO)
    rewards, advantages, loss = functions.rewards, functions.advantages, functions.loss

    --custom-reward-post-process-path my_run.rewards --custom-advantage-function-path my_run.advantages
    --loss-type custom_loss --custom-loss-function-path my_run.loss
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core._util.lazy_torch import torch
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, RecipeError, UnsupportedError
from agentrl_core.integrations import padded
from agentrl_core.integrations.sequences import Sequences

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.collect import Collector
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Loss
    from agentrl_core.recipe import Recipe

_REFERENCE = "reference_logprob"


class Functions:
    """Functions for slime's custom paths, for one recipe.

    Use `rewards` and `advantages` together: the first one computes advantages of whole groups, and passes them to the
    second one in place of the rewards.

    Args:
        recipe: the recipe, of which phases reward, advantage and weight, and the loss are used.
        collector: the collector for `rollouts`, or None.

    Example:
        Two rollouts of a prompt; slime hands over its own `Sample`, which this has the fields of:

        >>> from types import SimpleNamespace
        >>> from agentrl_core import recipes
        >>> from agentrl_core.integrations.slime import Functions
        >>> def sample(index, tokens, reward):
        ...     return SimpleNamespace(
        ...         index=index, group_index=0, rollout_id=None, tokens=tokens, response_length=2, loss_mask=None,
        ...         rollout_log_probs=None, metadata={}, remove_sample=False, get_reward_value=lambda args: reward,
        ...     )
        >>> functions = Functions(recipes.GRPO)
        >>> functions.rewards(None, [sample(0, [1, 2, 3], 1.0), sample(1, [1, 4, 5], 0.0)])[0]
        [1.0, 0.0]
    """

    def __init__(self, recipe: Recipe, *, collector: Collector | None = None) -> None:
        self.recipe = recipe
        self.collector = collector
        self._loss: Loss | None = None
        self._collected: Batch | None = None

    def rewards(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[list[float]]]:
        """Return the reward of each sample, and the advantages of its tokens; for `--custom-reward-post-process-path`.

        Samples with one `rollout_id` are the contexts of one rollout, a single member of its group. If the `metadata`
        of a sample has `step_rewards`, one number for each turn, these are added to its reward.

        Raises:
            RecipeError: the recipe reads columns that a sample does not have.
        """
        flat = [each for entry in samples for each in (entry if isinstance(entry, list) else [entry])]
        rows = sequences(args, flat)
        batch = self.recipe.credit(rows.batch)
        if batch.has("keep", "token"):
            raise RecipeError(
                f"recipe {self.recipe.name!r} takes tokens out of the loss (column 'keep'), but the loss mask of slime "
                "cannot change here; use a recipe without that column"
            )
        credit = np.asarray(batch.column("advantage", "token"), np.float64)
        if batch.has("weight", "token"):
            credit = credit * batch.column("weight", "token")
        spread = rows.spread(credit)
        return [float(each.get_reward_value(args)) for each in flat], [values.tolist() for values in spread]

    def advantages(self, args: Any, rollout_data: dict[str, Any]) -> None:
        """Set the advantages of `rewards` as tensors of this rank; for `--custom-advantage-function-path`.

        Raises:
            InvalidInputError: the rewards are not the lists of `rewards`, or their lengths differ from those of the
                responses, such as with context parallelism.
        """
        del args
        advantages, means = [], []
        for row, (values, like) in enumerate(zip(rollout_data["rewards"], rollout_data["kl"], strict=True)):
            if not isinstance(values, (list, tuple)) or len(values) != len(like):
                if isinstance(values, (list, tuple)):
                    raise InvalidInputError(
                        f"rewards[{row}] has {len(values)} advantages, but the response has {len(like)} tokens on this "
                        "rank; train without context parallelism"
                    )
                raise InvalidInputError(
                    f"rewards[{row}] is {values!r:.60}; give a list of {len(like)} advantages: set "
                    "--custom-reward-post-process-path to Functions.rewards"
                )
            advantages.append(torch.tensor(values, dtype=torch.float32, device=like.device))
            means.append(float(np.mean(values)) if len(values) else 0.0)
        rollout_data["advantages"], rollout_data["returns"] = advantages, [values.clone() for values in advantages]
        rollout_data["rewards"] = means  # slime logs their mean

    def loss(
        self, args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the recipe with slime's denominators, and metrics; for `--custom-loss-function-path`.

        Raises:
            RecipeError: the loss needs more than the rows of a micro batch.
            MissingDependencyError: slime's Megatron backend is not installed.
        """
        try:
            from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
        except ImportError as error:
            raise MissingDependencyError(
                f"the loss needs slime's Megatron backend, which cannot be imported ({error}); install megatron-core"
            ) from error
        if self._loss is None:
            self._loss = padded.row_loss(self.recipe, columns=(_REFERENCE,), entropy=True)
        if self._loss.needs_entropy_gradient and not getattr(args, "entropy_coef", 0.0):
            raise RecipeError(
                f"--entropy-coef is 0, but recipe {self.recipe.name!r} needs the gradient of the entropy; set it to "
                "another number (its size has no effect here)"
            )
        _, outputs = get_log_probs_and_entropy(
            logits,
            args=args,
            unconcat_tokens=batch["unconcat_tokens"],
            total_lengths=batch["total_lengths"],
            response_lengths=batch["response_lengths"],
            with_entropy=True,
        )
        logprobs = outputs["log_probs"]
        old = batch.get("rollout_log_probs" if args.use_rollout_logprobs else "log_probs")
        flat = torch.cat(logprobs)
        with torch.enable_grad():  # the reduction is linear: its derivatives are the weights
            terms = torch.zeros_like(flat, requires_grad=True)
            weights = torch.autograd.grad(sum_of_sample_mean(terms), terms)[0].split(batch["response_lengths"])
        columns = {"old_logprob": _rows(old or [values.detach() for values in logprobs])}
        if batch.get("ref_log_probs"):
            columns[_REFERENCE] = _rows(batch["ref_log_probs"])
        value, metrics = padded.evaluate(
            self._loss,
            _rows(logprobs),
            _rows(batch["loss_masks"]),
            weight=_rows(weights),
            advantage=_rows(batch["advantages"]),
            entropy=_rows(outputs["entropy"]),
            columns=columns,
        )
        log = {name: flat.new_tensor(number * len(logprobs)) for name, number in metrics.items()}
        return value, {"loss": value.detach(), **log}

    def rollouts(self, args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:  # noqa: FBT001, FBT002 - slime's signature
        """Return rollouts of the collector instead of slime's, for `--rollout-function-path`.

        Raises:
            InvalidInputError: there is no collector.
            UnsupportedError: slime requests an evaluation; leave `--eval-interval` out.
        """
        del data_source
        from slime.rollout.base_types import RolloutFnTrainOutput

        if self.collector is None:
            raise InvalidInputError("Functions.rollouts needs a collector; use Functions(recipe, collector=...)")
        if evaluation:
            raise UnsupportedError(
                "evaluation is True, but Functions.rollouts makes training rollouts only; leave --eval-interval out"
            )
        if self._collected is not None:
            self.collector.end_iteration(self._collected, {})
        self._collected = self.collector(tasks=args.rollout_batch_size, group_size=args.n_samples_per_prompt)
        return RolloutFnTrainOutput(samples=samples_of(self._collected, first=rollout_id * self._collected.num_draws))


def sequences(args: Any, samples: Sequence[Any]) -> Sequences:
    """Convert slime's samples to rows of prompt and response.

    Args:
        args: slime's arguments, which have the reward key.
        samples: instances of slime's `Sample`.
    """
    lengths = [sample.response_length for sample in samples]
    masks = [
        np.zeros(length, np.int64)
        if sample.remove_sample
        else np.ones(length, np.int64)
        if sample.loss_mask is None
        else np.asarray(sample.loss_mask)
        for sample, length in zip(samples, lengths, strict=True)
    ]
    known = all(sample.rollout_log_probs is not None for sample in samples)
    return Sequences(
        prompts=[sample.tokens[: len(sample.tokens) - length] for sample, length in zip(samples, lengths, strict=True)],
        responses=[
            sample.tokens[len(sample.tokens) - length :] for sample, length in zip(samples, lengths, strict=True)
        ],
        masks=masks,
        groups=[sample.group_index for sample in samples],
        rewards=[
            padded.token_rewards(
                mask,
                float(sample.get_reward_value(args)),
                (sample.metadata or {}).get("step_rewards"),
                where=f"samples[{place}]",
            )
            for place, (sample, mask) in enumerate(zip(samples, masks, strict=True))
        ],
        rollouts=[
            ("sample", sample.index) if sample.rollout_id is None else ("rollout", sample.rollout_id)
            for sample in samples
        ],
        logprobs=[sample.rollout_log_probs for sample in samples] if known else None,
    )


def samples_of(batch: Batch, *, first: int = 0) -> list[list[Any]]:
    """Return a batch as slime's samples, a list for each group: one sample for each context of each draw.

    Args:
        batch: the batch.
        first: the `rollout_id` of the first draw.

    Raises:
        MissingDependencyError: slime is not installed.
    """
    try:
        from slime.utils.types import Sample
    except ImportError as error:
        raise MissingDependencyError(
            f"slime cannot be imported ({error}); install it by its own instructions"
        ) from error
    rows = Sequences.of(batch)
    truncated = batch.column("status", "draw") == CODES["status"].index("truncated")
    rewards = batch.column("reward", "draw")
    groups: dict[Any, list[Any]] = {}
    for row, draw in enumerate(rows.rollouts or ()):
        place = int(str(draw))
        sample = Sample(
            group_index=int(str(rows.groups[row])),
            index=first + row,
            rollout_id=first + place,
            tokens=[*rows.prompts[row].tolist(), *rows.responses[row].tolist()],
            response_length=len(rows.responses[row]),
            reward=float(rewards[place]),
            loss_mask=rows.masks[row].tolist(),
            rollout_log_probs=None if rows.logprobs is None else rows.logprobs[row].tolist(),
            status=Sample.Status.TRUNCATED if truncated[place] else Sample.Status.COMPLETED,
        )
        groups.setdefault(rows.groups[row], []).append(sample)
    return list(groups.values())


def _rows(values: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True)
