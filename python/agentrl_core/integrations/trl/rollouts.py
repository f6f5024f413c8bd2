"""Rollouts of a `Collector` as the `rollout_func` of TRL's `GRPOTrainer`."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentrl_core.collect import Collector
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.sequences import Sequences


class Rollouts:
    """Lets a `Collector` generate the rollouts of TRL's trainer, in any environment and with any number of turns.

    Pass it as `rollout_func`, and its method `reward` in `reward_funcs`. The collector's environment chooses the tasks;
    only the number of TRL's prompts is used. With `RecipeTrainer`, the credit is computed from the collected batch,
    with all facts of the environment. The iteration of a batch ends when the next batch is requested; call `close`
    after `trainer.train()` to end the last one.

    Args:
        collector: a collector whose engine samples from the trainer's model (`engine.Transformers(model)`), or loads
            its weights.

    Attributes:
        batch: the batch of the last call, or None.

    Raises:
        InvalidInputError: from a call: a draw has several contexts, or the draws are not those that TRL requested.
    """

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.batch: Batch | None = None
        self._versions = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return as many rollouts of the collector's tasks as prompts, in groups of the trainer's `num_generations`."""
        self.close()
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        if trainer.accelerator.num_processes > 1:
            raise InvalidInputError(
                f"the trainer has {trainer.accelerator.num_processes} processes, but Rollouts collects in one process; "
                "use RolloutWorker with TRL's asynchronous trainer"
            )
        for engine in self.collector.engines.values():
            if not getattr(engine, "shares_parameters", False) and hasattr(engine, "update_weights"):
                self._versions += 1
                engine.update_weights(trainer.accelerator.unwrap_model(trainer.model), version=self._versions)
        self.batch = batch = self.collector(tasks=len(prompts) // size, group_size=size)
        rows = Sequences.of(batch)
        sizes = np.unique(np.asarray(rows.groups), return_counts=True)[1]
        if len(rows.groups) != batch.num_draws or len(rows.groups) != len(prompts) or (sizes != size).any():
            if len(rows.groups) != batch.num_draws:
                raise InvalidInputError(
                    f"the batch has {len(rows.groups)} contexts for {batch.num_draws} draws, but TRL needs one context "
                    "for each draw; use a recipe that does not rewrite contexts"
                )
            raise InvalidInputError(
                f"the batch has {batch.num_draws} draws in {len(sizes)} groups, but TRL needs {len(prompts) // size} "
                f"groups of {size} draws each; use a recipe that admits every group"
            )
        if rows.logprobs is None:
            raise InvalidInputError(
                "sampled tokens of the batch have no log-probs, which TRL needs; use an engine that reports log-probs"
            )
        return {
            "prompt_ids": [row.tolist() for row in rows.prompts],
            "completion_ids": [row.tolist() for row in rows.responses],
            "logprobs": [row.tolist() for row in rows.logprobs],
            "env_mask": [row.tolist() for row in rows.masks],
            "rollout_reward": [float(np.sum(row)) for row in rows.rewards],
        }

    def reward(self, completions: list[Any], **columns: Any) -> list[float]:
        """Return the rewards of the environment; a reward function for TRL."""
        rewards = columns.get("rollout_reward")
        if rewards is None or len(rewards) != len(completions):
            known = "no rollout_reward" if rewards is None else f"{len(rewards)} values of rollout_reward"
            raise InvalidInputError(
                f"there are {len(completions)} completions, but {known}, so they are not from the rollouts of this "
                "object; give this Rollouts to the trainer as rollout_func"
            )
        return list(rewards)

    def close(self) -> None:
        """End the iteration of the last batch, so that the collector and its store update their states."""
        if self.batch is not None:
            self.collector.end_iteration(self.batch, {})
            self.batch = None
