r"""Trainers for verl that compute the credit of rollouts with several turns and rows.

    VERL_USE_EXTERNAL_MODULES=agentrl_core.integrations.verl.trainer python -m verl.trainer.main_ppo \
        trainer.v1.trainer_mode=agentrl_sync algorithm.adv_estimator=agentrl_gigpo ...

verl passes only rewards, mask and group of each row to an estimator, and treats every row as a member of its group.
These trainers (`agentrl_sync`, `agentrl_colocate_async`, `agentrl_separate_async`) extend verl's, and also pass tokens,
log-probs, the rows that are contexts of one rollout, parts of the reward, and rewards of turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import transfer_queue
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, PPOTrainer, get_trainer_cls, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from agentrl_core.integrations.verl.dataproto import COLUMNS
from agentrl_core.integrations.verl.registry import Estimator, extra_columns

_TOKENS = {"prompts": "prompts", "responses": "responses", "rollout_log_probs": "logprobs"}
_OF_TOKENS = {name: column for name, column in COLUMNS.items() if name != "advantages"}


class Credited(PPOTrainer):
    """Trainer of verl whose estimators get whole rollouts.

    A rollout's rows are those whose keys have the same uid and session. The `extra_fields` of an agent loop or
    a reward function are used: the numbers of `reward_extra_info` become parts of the reward (`reward.<name>`, and
    `acc` or `success` marks rollouts that succeeded).
    """

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        from verl.trainer.ppo import core_algos

        name = str(self.config.algorithm.adv_estimator)
        if not isinstance(core_algos.ADV_ESTIMATOR_REGISTRY.get(name), Estimator):
            return super()._compute_advantage(batch, metrics=metrics)
        with extra_columns(**self._rows(batch), iteration=int(self.global_steps)):
            return super()._compute_advantage(batch, metrics=metrics)

    def _rows(self, batch: Any) -> dict[str, Any]:
        """Return the columns of the queue's rows besides rewards, mask and uid."""
        fields = [*_TOKENS, *_OF_TOKENS, "extra_fields"]
        table = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        tensors = {name: [row.cpu().numpy() for row in table[name]] for name in fields[:-1] if name in table.keys()}  # noqa: SIM118
        rows: dict[str, Any] = {ours: tensors[theirs] for theirs, ours in _TOKENS.items() if theirs in tensors}
        rows["columns"] = {ours: tensors[theirs] for theirs, ours in _OF_TOKENS.items() if theirs in tensors}
        rows["rollouts"] = [key.rsplit("_", 1)[0] for key in batch.keys]
        if "extra_fields" in table.keys():  # noqa: SIM118 - a TensorDict iterates over rows
            infos = [dict(extra or {}).get("reward_extra_info") or {} for extra in table["extra_fields"].tolist()]
            names = [
                name for name in infos[0] if all(isinstance(row.get(name), (int, float, np.number)) for row in infos)
            ]
            rows["components"] = {name: [float(row[name]) for row in infos] for name in names}
            solved = next((name for name in ("success", "acc") if name in names), None)
            if solved is not None:
                rows["success"] = [row[solved] > 0 for row in infos]
        return rows


def _register() -> None:
    """Register a trainer for each kind of trainer in verl."""
    for base in (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync):
        mode = next(name for name, trainer in TRAINER_REGISTRY.items() if trainer is base)
        register_trainer(f"agentrl_{mode}")(type(f"Credited{base.__name__}", (Credited, base), {}))


_register()
Trainer = get_trainer_cls("agentrl_sync")
"""The synchronous trainer, `agentrl_sync`."""
