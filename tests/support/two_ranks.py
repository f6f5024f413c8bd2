"""Runs the packs of two ranks with models in no wrapper; prints the warning of each rank, as JSON.

In a process of its own: it forks, which is safe before torch has started threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import recipes

MODES = ("by hand", "alone")


def batch_of_two() -> arl.Batch:
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3, 4 + member], kind="action", logprobs=[-0.5, -0.5])
        forest.finish(trajectory, reward=float(member))
    return recipes.GRPO.credit(forest.freeze())


def tiny() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes))


def gradient(model: Any, shards: int | None, rank: int) -> None:
    (update,) = recipes.GRPO.updates(batch_of_two())
    packs = update.pack(max_tokens=64, shards=shards)
    for pack in packs if shards is None else packs[rank]:  # type: ignore[index]
        update.loss(pack.run(model), pack).backward()


def of_rank(mode: str, rank: int, folder: Path) -> str:
    alone = tiny()
    gradient(alone, None, 0)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    model: Any = tiny()
    with warnings.catch_warnings(record=True, action="always") as told:
        gradient(model, None if mode == "alone" else 2, rank)
    if mode == "by hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    torch.testing.assert_close(model.lm_head.weight.grad, alone.lm_head.weight.grad)
    return str(told[0].message)


def reported(mode: str) -> list[str]:
    folder, children = Path(tempfile.mkdtemp()), []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            signal.alarm(300)
            try:
                found = of_rank(mode, rank, folder)
            except Exception as error:  # noqa: BLE001 -- it is what is tested
                found = f"{type(error).__name__}: {error}"
            except BaseException:  # noqa: BLE001 -- the parent has to see it
                found = traceback.format_exc()
            (folder / str(rank)).write_text(found)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return [(folder / str(rank)).read_text() for rank in range(2)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({mode: reported(mode) for mode in MODES}) + "\n")
