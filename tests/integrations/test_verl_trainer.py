"""verl's trainer with our credit: its own method, on rows in a real TransferQueue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from agentrl_core import recipes
from agentrl_core.integrations import verl as plugin
from agentrl_core.integrations.sequences import Sequences

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


KEYS = ["a_0_0", "a_0_1", "a_1_0", "a_2_0", "b_x_0_0", "b_x_1_0", "b_x_2_0"]
ROWS: dict[str, list[list[Any]]] = {
    "prompts": [[1, 2], [1, 2, 9], [1, 2], [1, 2], [5], [5], [5]],
    "responses": [[3, 4], [6, 7, 8], [3, 4], [3, 5, 7, 8], [6], [7], [6]],
    "response_mask": [[1, 1], [1, 0, 1], [1, 1], [1, 1, 0, 1], [1], [1], [1]],
    "rm_scores": [[0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0], [0.0], [0.0]],
    "rollout_log_probs": [
        [-0.1, -0.2],
        [-0.3, 0.0, -0.1],
        [-0.4, -0.2],
        [-0.1, -0.5, 0.0, -0.2],
        [-0.5],
        [-0.6],
        [-0.7],
    ],
}
UIDS = ["a", "a", "a", "a", "b_x", "b_x", "b_x"]


@pytest.fixture(scope="module")
def trainers() -> Any:
    """Import the trainers when a test needs them: that takes as long as the import of verl's trainer."""
    pytest.importorskip("transfer_queue", reason="TransferQueue is installed by `make test`")
    return pytest.importorskip("agentrl_core.integrations.verl.trainer")


@pytest.fixture(scope="module")
def queue(trainers: Any) -> Iterator[Any]:
    """Return a queue with the rows, as an agent loop adds them."""
    assert trainers.Trainer
    import ray
    import transfer_queue
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorStack

    ray.init(num_cpus=16, include_dashboard=False, logging_level="ERROR", ignore_reinit_error=True)
    transfer_queue.init()
    fields = {
        name: torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)
        for name, rows in ROWS.items()
    }
    extra = [{"reward_extra_info": {"acc": sum(row), "length": float(len(row))}} for row in ROWS["rm_scores"]]
    stored = TensorDict(
        {**fields, "uid": NonTensorStack(*UIDS), "extra_fields": NonTensorStack(*extra)}, batch_size=len(KEYS)
    )
    transfer_queue.kv_batch_put(keys=KEYS, partition_id="train", fields=stored, tags=[{} for _ in KEYS])
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


def advantages(queue: Any, trainers: Any, estimator: str) -> list[list[float]]:
    """Return the data that the trainer adds to the queue."""
    from omegaconf import OmegaConf

    trainer = object.__new__(trainers.Trainer)  # its workers need GPUs
    trainer.config = OmegaConf.create(
        {
            "algorithm": {"adv_estimator": estimator, "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
            "actor_rollout_ref": {"rollout": {"n": 3}},
        }
    )
    trainer.global_steps = 3
    batch = queue.KVBatchMeta(keys=KEYS, tags=[{} for _ in KEYS], partition_id="train")
    trainer._compute_advantage(batch, {})
    rows = queue.kv_batch_get(keys=KEYS, partition_id="train", select_fields=["advantages"])["advantages"]
    return [row.tolist() for row in rows]


@pytest.mark.usefixtures("trainers")
def test_the_trainers_are_registered_beside_those_of_verl() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    for mode in ("sync", "colocate_async", "separate_async"):
        assert issubclass(get_trainer_cls(f"agentrl_{mode}"), get_trainer_cls(mode))


def test_rows_of_a_session_are_one_member(queue: Any, trainers: Any) -> None:
    plugin.register_all()
    # Of a: 1, 0, 1 with mean 2/3 and deviation sqrt(1/3): 0.5774 and -1.1547; of b: 1, 0, 0.
    rounded = [[round(value, 4) for value in row] for row in advantages(queue, trainers, "agentrl_grpo")]
    up, down = 0.5773, -1.1547
    assert rounded[:4] == [[up, up], [up, 0.0, up], [down, down], [up, up, 0.0, up]]
    assert [row[0] for row in rounded[4:]] == [1.1547, -0.5773, -0.5773]


def test_states_are_found_in_the_tokens(queue: Any, trainers: Any) -> None:
    plugin.register_all()
    rows = Sequences(
        prompts=ROWS["prompts"],
        responses=ROWS["responses"],
        masks=ROWS["response_mask"],
        groups=UIDS,
        rewards=ROWS["rm_scores"],
        rollouts=[key.rsplit("_", 1)[0] for key in KEYS],
        logprobs=ROWS["rollout_log_probs"],
    )
    batch = recipes.GIGPO.credit(rows.batch)
    values = advantages(queue, trainers, "agentrl_gigpo")
    for ours, theirs in zip(rows.spread(batch.column("advantage", "token")), values, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-6)
    assert np.abs(values[3][0] - values[3][3]) > 0.1  # turns differ
    assert values[2] != values[0]


def test_verls_own_estimators_are_not_replaced(queue: Any, trainers: Any) -> None:
    values = advantages(queue, trainers, "grpo")
    assert values[1][1] == 0.0
    assert values[0][0] == pytest.approx(values[3][0])
