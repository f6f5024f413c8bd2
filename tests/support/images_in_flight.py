"""Loops on rollouts with images that stop half-way; as a program, a loop that is killed and continues.

`python images_in_flight.py FOLDER AT...`: for each AT a child process runs the loop, kills itself at request AT (0:
never), and another process continues to the end. Prints a line of JSON: `died` (the signal), `asked` (requests of each
process), `tokens` and `logprobs` of each batch, and `apart`, the largest difference to recomputed log-probs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from gallery import Gallery, Viewing
from numpy.typing import NDArray
from vision_models import build

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.env import StepResult, Task

FAMILY, SIZE, TASKS, ITERATIONS = "smolvlm", 2, 2, 3
SAMPLING = Sampling(temperature=0.8, max_tokens=8)
WINDOW = BatchPolicy(max_new_tokens=5)
_UNCUT = BatchPolicy()


@cache
def policy(version: int) -> Any:
    """Return the model of a policy version; all of its weights differ from those of other versions."""
    return build(FAMILY, seed=version)[0]


@cache
def processor() -> Any:
    return build(FAMILY)[1]


class Moving(engine.Transformers):
    """An engine that records its segments and the tokens of their requests.

    Args:
        at: number of generation steps after which new weights come; 0: never.
        dies: number of the request at which the process ends; 0: never.
        pause: seconds before each generation step, so that requests end after a decision about them.
    """

    def __init__(self, *, at: int = 0, dies: int = 0, version: int = 0, pause: float = 0.0) -> None:
        super().__init__(policy(version), processor(), copy=True, batch_invariant=True)
        self.policy_version = version
        self.at, self.remaining, self.steps, self.pause = at, dies, 0, pause
        self.segments: list[tuple[Request, Segment]] = []
        self.num_requests = 0

    async def generate(self, request: Request) -> Segment:
        self.num_requests += 1
        self.remaining -= 1
        if not self.remaining:
            os.kill(os.getpid(), signal.SIGKILL)
        segment = await super().generate(request)
        self.segments.append((request, segment))
        return segment

    def _step(self) -> dict[int, Segment]:
        self.steps += 1
        time.sleep(self.pause)
        if self.steps == self.at:
            new = self.policy_version + 1
            threading.Thread(target=self.update_weights, args=(policy(new), new)).start()
            while self._mail.empty():  # the engine loads it after this step
                time.sleep(0.001)
        return super()._step()

    def halves(self) -> int:
        """Count the segments with tokens and images that ended half-way."""
        return sum(
            each.finish_reason == "abort" and len(each.tokens) > 0 and len(request.images) > 0
            for request, each in self.segments
        )


class Glance(Viewing):
    """An episode that ends with the first action."""

    def step(self, action: str) -> StepResult:
        return StepResult(reward=float(len(action) % 2), terminated=True, success=True)


class UnevenGallery(Gallery):
    """Episodes of which every other one ends with the first action."""

    def reset(self, task: Task, seed: int) -> Viewing:
        episode = super().reset(task, seed)
        return Glance(episode.task) if episode.task % 2 == 0 else episode


def versions(batch: arl.Batch) -> NDArray[np.int64]:
    """Return the policy version that sampled each action token."""
    nodes = pl.DataFrame(batch.nodes)
    of_stored = np.repeat(nodes["policy_version"].fill_null(-1).to_numpy(), nodes["tokens"].list.len().to_numpy())
    token_versions: NDArray[np.int64] = of_stored[batch.column("node_token", "token")]
    return token_versions


def apart(batch: arl.Batch) -> float:
    """Return the largest difference between the engine's log-probs and those that each token's policy recomputes."""
    sampled, version, largest = np.asarray(batch.column("behaviour_logprob", "token")), versions(batch), 0.0
    assert (version >= 0).all()
    for each in np.unique(version).tolist():
        recomputed = arl.annotate(batch, "recomputed_logprob", policy(each), processor=processor())
        differences = np.abs(recomputed.column("recomputed_logprob", "token") - sampled)[version == each]
        assert np.isfinite(differences).all()
        largest = max(largest, float(differences.max()))
    return largest


def mixed_steps(batch: arl.Batch) -> int:
    """Count the actions that several policy versions sampled."""
    version, offsets = versions(batch), batch.offsets("token")
    return sum(len(set(version[begin:end].tolist())) > 1 for begin, end in pairwise(offsets.tolist()))


def trained(
    generate: Moving, world: Any, cut: BatchPolicy = _UNCUT, store: Any = None, until: int = ITERATIONS
) -> list[arl.Batch]:
    """Return the batches of a loop with another policy in each iteration."""
    batches = []
    collect = arl.Collector(
        generate, world, recipes.GRPO, seed=4, task_pool=8, sampling=SAMPLING, batch_policy=cut, store=store
    )
    while collect.iteration < until:
        if generate.policy_version != collect.iteration:
            generate.update_weights(policy(collect.iteration), version=collect.iteration)
        batches.append(collect(tasks=TASKS, group_size=SIZE))
        collect.end_iteration(recipes.GRPO.credit(batches[-1]), {})
    collect.close()
    return batches


def live(folder: Path, dies: int) -> None:
    """Run the loop to its end, or to a request."""
    with arl.Store.open(folder / "run") as store:
        generate = Moving(dies=dies, version=store.iteration)
        trained(generate, Gallery(), WINDOW, store)
    (folder / "asked").write_text(str(generate.num_requests))


def killed(folder: Path, at: int) -> dict[str, Any]:
    died = []
    for dies in (at, 0)[at == 0 :]:
        child = os.fork()
        if not child:
            live(folder, dies)
            os._exit(0)
        died.append(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with arl.Store.open(folder / "run", read_only=True) as store:
        batches = [store.batch(iteration) for iteration in range(ITERATIONS)]
        return {
            "died": died,
            "asked": int((folder / "asked").read_text()),
            "tokens": [batch.column("token", "token").tolist() for batch in batches],
            "logprobs": [batch.column("behaviour_logprob", "token").tolist() for batch in batches],
            "mixed": sum(map(mixed_steps, batches)),
            "apart": max(map(apart, batches)),
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in map(int, sys.argv[2:]):
        folder = Path(sys.argv[1], str(number))
        folder.mkdir()
        sys.stdout.write(json.dumps(killed(folder, number)) + "\n")
