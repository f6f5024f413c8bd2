"""TRL's `GRPOTrainer` with the advantage and the loss of a recipe."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import RecipeError
from agentrl_core.integrations import padded
from agentrl_core.integrations.sequences import Sequences
from agentrl_core.integrations.trl.rollouts import Rollouts
from agentrl_core.recipe import Recipe

_REFERENCE = "reference_logprob"


class RecipeTrainer(GRPOTrainer):
    """A `GRPOTrainer` that trains with a recipe: its phases reward, advantage and weight, and its loss.

    Everything else is TRL's: generation, tools and environments, reward functions, distribution, logging. Advantages
    are per token if the recipe's are; the rewards of TRL's functions are also parts of the reward, named
    `reward.<function>`. A `rollout_func` (or a dataset) can set rewards of turns in `step_rewards`, one number for each
    turn of a row. The loss has the denominators of the recipe, over all rows of one generation; `loss_type`, `epsilon`,
    `scale_rewards`, `delta`, `entropy_coef` and `importance_sampling_level` of the configuration have no effect here,
    and `beta` only decides whether a reference model is loaded.

    Args:
        recipe: the recipe. Its phases select and replay are unused, unless a `Rollouts` collects for it.
        arguments: arguments of `GRPOTrainer`.
        options: options of `GRPOTrainer`.

    Raises:
        RecipeError: the recipe cannot train the rows of a micro batch, or it needs a reference and `beta` is 0.
    """

    def __init__(self, *arguments: Any, recipe: Recipe, **options: Any) -> None:
        self.recipe = recipe
        self.row_loss = padded.row_loss(recipe, columns=(_REFERENCE,), entropy=True)
        self._scored: tuple[Tensor, list[Any]] | None = None
        super().__init__(*arguments, **options)
        if _REFERENCE in self.row_loss.streams and self.beta == 0.0:
            raise RecipeError(
                f"beta is 0, but recipe {recipe.name!r} needs a reference model, which TRL keeps only if beta is not "
                "0; give GRPOConfig(beta=1.0) (its size has no effect: the recipe sets the weight)"
            )

    def _calculate_rewards(self, inputs: Any, *arguments: Any, **options: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, *arguments, **options)
        self._scored = rewards, [example.get("step_rewards") for example in inputs]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        advantages, weights = self._credited(output)
        output["advantages"] = advantages
        output["loss_weight"] = weights
        return output

    def _credited(self, output: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return advantage and loss weight of this process's tokens, `[B, T]` each."""
        rollouts = self.rollout_func
        width, process = output["completion_ids"].shape, self.accelerator.process_index
        if isinstance(rollouts, Rollouts) and rollouts.batch is not None:
            batch = self._with_credit(rollouts.batch)
            rollouts.batch = batch
            columns_of_rows = Sequences.of(batch, columns=_MADE).columns
            spread: list[Any] = [columns_of_rows[name] for name in _MADE]
        else:
            rows = self._rows(output)
            batch = self._with_credit(rows.batch)
            spread = [rows.spread(batch.column(name, "token")) for name in _MADE]
        table = np.zeros((2, *width), np.float32)
        rows_of_process = slice(process * width[0], (process + 1) * width[0])
        for place, columns in enumerate(spread):
            for row, values in enumerate(columns[rows_of_process]):
                table[place, row, : len(values)] = values
        advantages, weights = torch.from_numpy(table).to(output["completion_ids"].device)
        return advantages, weights

    def _with_credit(self, batch: Batch) -> Batch:
        """Return the batch with the advantage that the loss uses, and the loss weight of each token."""
        batch = self.recipe.credit(batch)
        advantage = np.asarray(batch.column("advantage", "token"), np.float64)
        if batch.has("weight", "token"):
            advantage = advantage * batch.column("weight", "token")
        weights = batch.token_weights(
            np.arange(batch.num_draws),
            denominator=self.row_loss.denominator,
            constant=self.row_loss.denominator_constant,
            shared=self.recipe.shared,
            valid=np.isfinite(batch.column("score", "draw")),
            keep=np.asarray(batch.column("keep", "token")) != 0 if batch.has("keep", "token") else None,
        )
        return batch.with_columns("token", **dict(zip(_MADE, (advantage, weights), strict=True)))

    def _rows(self, output: dict[str, Any]) -> Sequences:
        """Return the generated rows of all processes."""
        if self._scored is None:
            raise RecipeError(
                "advantages were requested before the rewards were computed, as in versions of TRL that are not "
                "supported; use TRL 1.11 to 1.16"
            )
        scored, step_rewards = self._scored
        attended = {"prompt_ids": output["prompt_mask"].bool(), "completion_ids": output["completion_mask"].bool()}
        names = {"old_per_token_logps": "recomputed_logprob", "ref_per_token_logps": _REFERENCE}
        tensors = {
            name: output[name]
            for name in (*attended, "tool_mask", "sampling_per_token_logps", *names)
            if name in output
        }
        local = [
            {
                name: values[row][attended.get(name, attended["completion_ids"])[row]].float().cpu().numpy()
                for name, values in tensors.items()
            }
            | {"step_rewards": step_rewards[row]}
            for row in range(len(output["prompt_ids"]))
        ]
        rows = gather_object(local)
        size = self.num_generations if self.model.training else self.num_generations_eval
        rewards = (scored * self.reward_weights.to(scored).unsqueeze(0)).nansum(dim=1)
        rewards[scored.isnan().all(dim=1)] = torch.nan
        masks = [row.get("tool_mask", np.ones(len(row["completion_ids"]))) for row in rows]
        parts = {name: scored[:, place].tolist() for place, name in enumerate(self.reward_func_names)}
        chances = [row["sampling_per_token_logps"] for row in rows] if "sampling_per_token_logps" in tensors else None
        return Sequences(
            prompts=[row["prompt_ids"].astype(np.int64) for row in rows],
            responses=[row["completion_ids"].astype(np.int64) for row in rows],
            masks=masks,
            groups=[row // size for row in range(len(rows))],
            rewards=[
                padded.token_rewards(mask, reward, row["step_rewards"])
                for mask, reward, row in zip(masks, rewards.tolist(), rows, strict=True)
            ],
            logprobs=chances if chances is not None and all(np.isfinite(row).all() for row in chances) else None,
            components=parts,
            columns={ours: [row[theirs] for row in rows] for theirs, ours in names.items() if theirs in tensors},
            iteration=int(self.state.global_step),
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        completion = inputs["completion_ids"]
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        function = self._get_per_token_logps_and_entropies
        extra = {name: inputs[name] for name in inspect.signature(function).parameters if name in inputs}
        logprob, entropy, auxiliary = function(
            model,
            torch.cat([inputs["prompt_ids"], completion], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            completion.size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **extra,
        )
        train = self.model.training
        steps = self.args.steps_per_generation if train else 1
        parts = self.current_gradient_accumulation_steps if train else 1
        ratio = inputs.get("importance_sampling_ratio")
        value, metrics = padded.evaluate(
            self.row_loss,
            logprob,
            mask,
            # The weights are for the whole generation; an optimizer step sees `parts` of its `steps` parts.
            weight=inputs["loss_weight"] * (steps / parts * self.accelerator.num_processes),
            advantage=inputs["advantages"],
            entropy=entropy,
            columns={"old_logprob": self._old(inputs, logprob), **self._reference(inputs)},
            factor=None if ratio is None else ratio.expand_as(logprob),
        )
        for name, number in metrics.items():
            gathered = self.accelerator.gather(torch.tensor(number, device=completion.device))
            self._metrics["train" if train else "eval"][f"recipe/{name}"].append(gathered.nanmean().item())
        return value + self.router_aux_loss_coef * auxiliary / parts if self.aux_loss_enabled else value

    def _old(self, inputs: dict[str, Any], logprob: Tensor) -> Tensor:
        """Return the old log-probs: as sampled, if the recipe uses these and no other correction applies."""
        sampled: Tensor | None = inputs.get("sampling_per_token_logps")
        if sampled is not None and self.recipe.old_logprob == "behaviour" and "importance_sampling_ratio" not in inputs:
            return sampled
        old: Tensor | None = inputs.get("old_per_token_logps")
        return logprob.detach() if old is None else old

    @staticmethod
    def _reference(inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {_REFERENCE: inputs["ref_per_token_logps"]} if "ref_per_token_logps" in inputs else {}


_MADE = ("advantage_of_loss", "weight_of_loss")
"""Columns of the advantage and weight that the loss uses."""
