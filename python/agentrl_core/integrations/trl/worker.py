"""A rollout worker for TRL's asynchronous trainer: batches of a `Collector`, credited by its recipe."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from agentrl_core.collect import Collector
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import EngineError, InvalidInputError
from agentrl_core.integrations.sequences import Sequences


class RolloutWorker:
    """Generates rollouts with a `Collector`, credited by its recipe, for TRL's `AsyncGRPOTrainer(rollout_worker=...)`.

    It collects in a separate thread, and waits while the rows of two batches are ready. TRL's rows have one advantage
    each: a draw whose turns have different advantages becomes a row for each turn, with all earlier tokens as context.
    A turn with several advantages is refused.

    Args:
        collector: a collector whose engine samples from the weights that TRL sends (`engine.VllmServer`), or from a
            model in this process.
        tasks: number of groups in a batch.
        group_size: number of rollouts in a group.

    Attributes:
        rollout_buffer: queue from which the trainer takes rows.
        metrics_queue: queue from which the trainer takes metrics.
    """

    def __init__(self, collector: Collector, *, tasks: int, group_size: int) -> None:
        self.collector = collector
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._tasks, self._group_size = tasks, group_size
        self._version = 0
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._seen = time.monotonic()
        self._thread = threading.Thread(target=self._collect, name="agentrl-rollouts", daemon=True)

    def start(self) -> None:
        """Start collecting in a thread."""
        self._seen = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop collecting; returns after the current batch is complete."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """Set the version of the weights that the engine samples from."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise an error if collecting failed or has stalled.

        Raises:
            EngineError: collecting failed, or no rollout arrived for `stale_after_s` seconds.
        """
        if self._error is not None:
            raise EngineError(
                f"the collector failed ({type(self._error).__name__}: {self._error}); correct the cause and start again"
            ) from self._error
        if self.rollout_buffer.empty() and time.monotonic() - self._seen > stale_after_s:
            raise EngineError(
                f"the collector gave no rollout for {stale_after_s:g} seconds; raise stale_after_s, or check the engine"
            )

    def _collect(self) -> None:
        try:
            while not self._stopped.is_set():
                version = self._version
                batch = self.collector.recipe.credit(self.collector(tasks=self._tasks, group_size=self._group_size))
                samples = list(rollout_samples(batch, version=version))
                for sample in samples:
                    self.rollout_buffer.put(sample)
                self.collector.end_iteration(batch, {})
                self._seen = time.monotonic()
                while self.rollout_buffer.qsize() > len(samples) and not self._stopped.wait(0.01):
                    self._seen = time.monotonic()
        except Exception as error:  # noqa: BLE001 - it is raised in the trainer
            self._error = error


def rollout_samples(batch: Batch, *, version: int = 0) -> Iterator[RolloutSample]:
    """Yield the rows of a credited batch in the form of TRL's asynchronous trainer.

    Args:
        batch: a batch with column `advantage`, and `weight` if the recipe computes one.
        version: version of the weights that sampled the batch.

    Raises:
        InvalidInputError: the tokens of a turn have different advantages, or log-probs are unknown.
    """
    names = [name for name in ("advantage", "weight", "keep") if batch.has(name, "token")]
    rows = Sequences.of(batch, columns=names)
    if rows.logprobs is None:
        raise InvalidInputError(
            "sampled tokens of the batch have no log-probs, which TRL needs; use an engine that reports log-probs"
        )
    for row, (prompt, response, mask) in enumerate(zip(rows.prompts, rows.responses, rows.masks, strict=True)):
        credit = np.prod([rows.columns[name][row] for name in names if name != "keep"], axis=0)
        kept = (mask != 0) & (rows.columns["keep"][row] != 0) if "keep" in names else mask != 0
        turns = np.cumsum(np.append(kept[:1], kept[1:] & ~kept[:-1])) - 1
        for advantage, selected in _parts(credit, kept, turns, row):
            end = int(np.flatnonzero(selected)[-1]) + 1
            total = len(prompt) + end
            masks, chances = np.zeros(total, np.int64), np.zeros(total, np.float32)
            masks[len(prompt) :] = selected[:end]
            chances[len(prompt) :] = np.where(selected, rows.logprobs[row], 0.0)[:end]
            yield RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.concatenate([prompt, response[:end]]).astype(np.int64),
                completion_mask=masks,
                old_log_probs=chances,
                advantage=advantage,
                model_version=version,
                group_id=int(str(rows.groups[row])),
                metrics={"reward": float(np.sum(rows.rewards[row]))},
                enqueued_at=time.monotonic(),
            )


def _parts(credit: Any, kept: Any, turns: Any, row: int) -> Iterator[tuple[float, Any]]:
    """Yield a row as a whole if its tokens have the same advantage, otherwise its turns."""
    if not kept.any():
        return
    if np.ptp(credit[kept]) <= 1e-6:
        yield float(credit[kept][0]), kept
        return
    for turn in np.unique(turns[kept]).tolist():
        mask = kept & (turns == turn)
        if np.ptp(credit[mask]) > 1e-6:
            raise InvalidInputError(
                f"turn {turn} of row {row} has advantages from {credit[mask].min():g} to {credit[mask].max():g}, but "
                "TRL's asynchronous trainer takes one for each turn; choose a recipe with one advantage for each turn "
                "or rollout, or use RecipeTrainer"
            )
        yield float(credit[mask][0]), mask
