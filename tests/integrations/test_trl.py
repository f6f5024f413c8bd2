"""Recipes in the real trainers of TRL, on a tiny model: losses, gradients and advantages of our own updates."""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from riddles import TOKENIZER
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import advantage, loss, recipes
from agentrl_core.exceptions import EngineError, InvalidInputError, RecipeError
from agentrl_core.integrations import trl as plugin
from agentrl_core.integrations.sequences import Sequences
from agentrl_core.recipe import Recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*rollout_func.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

TURNS = recipes.GRPO.replace(
    name="turns",
    advantage=(
        advantage.Discounted(gamma=0.9),
        advantage.GroupRelative(column="advantage", level="step", group_by="group_id,step", scale="none"),
    ),
    loss=loss.Policy(aggregate="token_mean"),
)
"""A recipe that compares the return of a turn with the same turn of the other rollouts."""


@pytest.fixture(scope="module", autouse=True)
def trl() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = pytest.importorskip("trl", reason="TRL is installed by `make test`")
            pytest.importorskip("trl.experimental.async_grpo")
        yield module


def watched(recipe: Recipe, folder: Path, *, steps: int = 1, accumulate: int = 2, **options: Any) -> Any:
    """Return a trainer with plain SGD steps, and a list of its inputs."""
    from datasets import Dataset
    from trl import GRPOConfig

    class Watched(plugin.RecipeTrainer):
        seen: list[tuple[dict[str, Any], float]]

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            value = super()._compute_loss(model, inputs)
            self.seen.append((inputs, value.item()))
            return value

    model = tiny_model(dtype=torch.float32, vocab_size=len(TOKENIZER))
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        num_generations=4,
        max_completion_length=6,
        max_steps=steps,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        seed=3,
        **options.pop("config", {}),
    )
    options.setdefault("reward_funcs", [vowels])
    trainer = Watched(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cd", "ef", "gh"]}),
        processing_class=TOKENIZER,
        recipe=recipe,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
        **options,
    )
    trainer.seen = []
    return trainer


def vowels(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(token % 3 == 0 for token in ids)) for ids in completion_ids]


def own_step(recipe: Recipe, rows: Sequences, model: torch.nn.Module) -> float:
    """Return the loss of the recipe's own update on the same rows; its gradients stay in the model."""
    recipe = recipe.replace(old_logprob="recomputed")
    batch = recipe.credit(arl.annotate(rows.batch, "recomputed_logprob", model))
    total = 0.0
    for update in recipe.updates(batch):
        for pack in update.pack(max_tokens=4096):
            value = update.loss(pack.run(model), pack)
            value.backward()
            total += value.item()
    return total


def rows_of(step_inputs: list[tuple[dict[str, Any], float]], rewards: Any) -> Sequences:
    """Return a trainer's inputs as rows; they are shuffled, so a row's prompt identifies its group."""
    prompts, responses, masks = [], [], []
    for inputs, _ in step_inputs:
        for row in range(len(inputs["prompt_ids"])):
            is_token = inputs["completion_mask"][row].bool()
            prompts.append(inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist())
            responses.append(inputs["completion_ids"][row][is_token].tolist())
            masks.append(inputs.get("tool_mask", inputs["completion_mask"])[row][is_token].tolist())
    return Sequences(
        prompts=prompts,
        responses=responses,
        masks=masks,
        groups=[str(prompt) for prompt in prompts],
        rewards=[rewards(ids, mask) for ids, mask in zip(responses, masks, strict=True)],
    )


@pytest.mark.parametrize(
    "recipe",
    [
        recipes.GRPO,
        recipes.DAPO,
        recipes.GSPO,
        recipes.DR_GRPO.replace(loss=loss.Policy(aggregate="constant", constant=6)),
    ],
    ids=lambda recipe: recipe.name,
)
def test_trl_training_takes_the_same_step_as_our_own_update(recipe: Recipe, tmp_path: Path) -> None:
    # DAPO shapes by a length that these rows lack; the trainer does one step per batch.
    recipe = recipe.replace(reward=recipes.GRPO.reward, minibatches=1)
    trainer = watched(recipe, tmp_path)
    before = copy.deepcopy(trainer.model)
    trainer.train()
    assert len(trainer.seen) == 2
    rows = rows_of(trainer.seen, lambda ids, _: vowels([ids])[0])
    expected = own_step(recipe, rows, before)
    assert sum(value for _, value in trainer.seen) == pytest.approx(expected, abs=1e-5)
    moved = 0.0
    for old, new in zip(before.parameters(), trainer.model.parameters(), strict=True):
        gradient = torch.zeros_like(old) if old.grad is None else old.grad
        torch.testing.assert_close(new.detach().cpu(), old.detach() - 0.1 * gradient, rtol=1e-4, atol=1e-5)
        moved = max(moved, gradient.abs().max().item())
    assert moved > 1e-3
    (first,) = [entry for entry in trainer.state.log_history if "recipe/ratio" in entry]
    assert first["recipe/ratio"] == pytest.approx(1.0)
    assert first["recipe/entropy"] > 1.0


def two_turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Return rollouts of two turns with two tokens of a tool between them, each turn paid."""
    rng = np.random.default_rng(trainer.state.global_step)
    ids = [rng.integers(3, 200, 7).tolist() for _ in prompts]
    return {
        "prompt_ids": [TOKENIZER(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [(-rng.random(7)).tolist() for _ in prompts],
        "env_mask": [[1, 1, 0, 0, 1, 1, 1] for _ in prompts],
        "step_rewards": [[float(row[0] % 2), float(row[6] % 3)] for row in ids],
    }


def test_turn_rewards_give_each_turn_its_own_advantage(tmp_path: Path) -> None:
    trainer = watched(
        TURNS.replace(old_logprob="recomputed"),
        tmp_path,
        rollout_func=two_turns,
        reward_funcs=[lambda prompts, **_: [0.0] * len(prompts)],
    )
    before = copy.deepcopy(trainer.model)
    trainer.train()

    def paid(ids: list[int], _: list[int]) -> np.ndarray:
        rewards = np.zeros(7)
        rewards[[1, 6]] = ids[0] % 2, ids[6] % 3
        return rewards

    rows = rows_of(trainer.seen, paid)
    # Two turns paid a and b have returns a + 0.9 b and b; each is compared with the same turn's mean in its group.
    led = np.array([[ids[0] % 2 + 0.9 * (ids[6] % 3), ids[6] % 3] for ids in rows.responses])
    advantages = torch.cat([inputs["advantages"] for inputs, _ in trainer.seen]).numpy()
    for row, group in enumerate(rows.groups):
        members = [place for place, other in enumerate(rows.groups) if other == group]
        first, second = led[row] - led[members].mean(axis=0)
        np.testing.assert_allclose(advantages[row], [first, first, 0, 0, second, second, second], atol=1e-6)
    assert np.abs(advantages[:, 0] - advantages[:, 6]).max() > 0.1
    expected = own_step(TURNS, rows, before)
    assert sum(value for _, value in trainer.seen) == pytest.approx(expected, abs=1e-5)


def test_a_collector_makes_the_rollouts(tmp_path: Path) -> None:
    world = SmallWorld()
    store = arl.Store.open(tmp_path / "run")
    rollouts = plugin.Rollouts(arl.Collector(world, world, TURNS, store=store))
    trainer = watched(TURNS, tmp_path / "out", steps=2, rollout_func=rollouts, reward_funcs=[rollouts.reward])
    trainer.train()
    rollouts.close()
    assert store.iteration == 2
    for iteration in range(2):
        batch = store.batch(iteration=iteration)
        rows = Sequences.of(TURNS.credit(batch), columns=["advantage"])
        step_inputs = [inputs for inputs, _ in trainer.seen[2 * iteration : 2 * iteration + 2]]
        actual = {
            tuple(ids[mask.bool()].tolist()): values[mask.bool()].tolist()
            for inputs in step_inputs
            for ids, mask, values in zip(
                inputs["completion_ids"], inputs["completion_mask"], inputs["advantages"], strict=True
            )
        }
        expected = {
            tuple(ids.tolist()): values for ids, values in zip(rows.responses, rows.columns["advantage"], strict=True)
        }
        assert actual.keys() == expected.keys()
        assert len(actual) == 8
        for ids, values in expected.items():
            np.testing.assert_allclose(actual[ids], values, atol=1e-6)
    store.close()


def test_unsupported_recipes_and_unknown_completions_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="'pair'"):
        watched(recipes.DPO, tmp_path)
    with pytest.raises(RecipeError, match=r"keeps only if beta is not 0; give GRPOConfig\(beta=1.0\)"):
        watched(recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1))), tmp_path)
    world = SmallWorld()
    rollouts = plugin.Rollouts(arl.Collector(world, world, recipes.GRPO))
    with pytest.raises(InvalidInputError, match="not from the rollouts of this object"):
        rollouts.reward(["a"])


def test_the_asynchronous_trainer_gets_rows_with_our_advantages() -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

    world = SmallWorld()
    collector = arl.Collector(world, world, TURNS)
    worker = plugin.RolloutWorker(collector, tasks=2, group_size=4)
    worker.update_model_version(5)
    worker.start()
    metrics: Any = defaultdict(list)
    rows = RolloutQueueDataset(worker.rollout_buffer, lambda: 5, worker.check_health, 60.0, metrics)
    row_iterator = iter(rows)
    samples = [next(row_iterator) for _ in range(16)]
    worker.stop()
    assert worker.metrics_queue.empty()

    same = SmallWorld()
    batch = TURNS.credit(arl.Collector(same, same, TURNS)(tasks=2, group_size=4))
    expected = Sequences.of(batch, columns=["advantage"])
    checked = 0
    for row, (prompt, response) in enumerate(zip(expected.prompts, expected.responses, strict=True)):
        credit, mask = expected.columns["advantage"][row], expected.masks[row]
        turns = np.split(np.flatnonzero(mask), np.flatnonzero(np.diff(np.flatnonzero(mask)) > 1) + 1)
        for turn in turns if np.ptp(credit[mask != 0]) > 1e-6 else [np.concatenate(turns)]:
            sample = samples[checked]
            ids = [*prompt.tolist(), *response[: turn[-1] + 1].tolist()]
            assert list(sample["input_ids"]) == ids
            assert np.flatnonzero(sample["completion_mask"]).tolist() == (turn + len(prompt)).tolist()
            assert float(np.ravel(np.asarray(sample["advantage"]))[0]) == pytest.approx(credit[turn[0]])
            checked += 1
            if checked == len(samples):
                return
    raise AssertionError(f"only {checked} rows were compared")


def test_check_health_raises_if_the_collector_failed() -> None:
    class Broken(SmallWorld):
        async def generate(self, request: Any) -> Any:
            raise RuntimeError(f"no answer to {len(request.tokens)} tokens")

    world = Broken()
    worker = plugin.RolloutWorker(arl.Collector(world, world, recipes.GRPO), tasks=1, group_size=2)
    worker.start()
    worker._thread.join(60)
    with pytest.raises(EngineError, match="the collector failed"):
        worker.check_health(60.0)
    worker.stop()
