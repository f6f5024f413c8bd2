"""Compute gradients on two ranks through the wrappers of PyTorch, PEFT and Accelerate; print the results as JSON.

The result of a mode is, for each layout and way, the largest difference of a parameter's gradient on rank 0 to that of
one process, divided by the largest gradient; or a message, if the mode fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import loss, recipes

Result = Callable[[str, int, str], dict[str, float]]
"""A function from a mode, the rank and the ranks' meeting file to the result of the rank."""
CASES = [
    (layout, way) for layout in ("tree", "sequence", "padded") for way in ("run", "fused", "annotate", "checkpointed")
]


def rollouts() -> arl.Batch:
    """Return two groups of three draws, whose prompts and first tokens are shared."""
    forest = arl.Forest()
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(3):
            length = 3 + 4 * member
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2, 3], kind="prompt")
            forest.append(trajectory, [7, *[5 + member] * length], kind="action", logprobs=[-4.0] * (length + 1))
            forest.finish(trajectory, reward=float(member == group))
    return recipes.GRPO.credit(forest.freeze())


def new_model(mode: str) -> Any:
    """Return the model of a mode before it is wrapped for ranks; the same on each rank."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    model: Any = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
    if "lora" in mode:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False, r=4))
    return model


def wrapped(model: Any, mode: str) -> Any:
    """Return the model in its wrapper."""
    if mode.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model)
    if mode.startswith("fsdp1"):
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    if mode == "accelerate":
        from accelerate import Accelerator

        return Accelerator(cpu=True).prepare(model)
    base = model.get_base_model() if "lora" in mode else model
    parts = [] if "root" in mode else [*base.model.layers]
    options: dict[str, Any] = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if "head" in mode:
        parts.append(base.lm_head)
        options["reshard_after_forward"] = True
    if "rounded" in mode:
        options["mp_policy"] = MixedPrecisionPolicy(output_dtype=torch.bfloat16)
    for part in (*parts, model):
        fully_shard(part, **options)
    return model


def differentiate(model: Any, layout: Any, way: str) -> torch.Tensor | None:
    """Add the gradients of an update; or annotate."""
    batch = rollouts() if not dist.is_initialized() or dist.get_rank() == 0 else None
    if way == "annotate":
        batch = arl.annotate(batch, "reference_logprob", model, layout=layout)
        return None if batch is None else torch.from_numpy(batch.column("reference_logprob", "token").copy())
    for update in recipes.GRPO.updates(batch):
        for pack in update.pack(max_tokens=64, layout=layout):
            output = loss.run_fused(model, pack, recipes.GRPO.loss) if way == "fused" else pack.run(model)
            update.loss(output, pack).backward()
    return None


def unsharded(tensor: Any) -> torch.Tensor:
    result: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result.detach().clone()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Take all gradients from a model; those of untrained parameters are missing."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            result = {name: unsharded(each.grad) for name, each in model.named_parameters() if each.grad is not None}
    else:
        result = {name: unsharded(each.grad) for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return {name.replace("_fsdp_wrapped_module.", "").removeprefix("module."): each for name, each in result.items()}


def compare(mode: str, rank: int, meeting: str) -> dict[str, float]:
    """Return the differences of all cases."""
    alone, references, answers = new_model(mode), {}, {}
    for layout, way in CASES:
        answers[layout, way] = differentiate(alone, layout, way)
        references[layout, way] = gradients(alone)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    plain = new_model(mode)
    model = wrapped(plain, mode)
    used = model.module if mode == "ddp.module" else model
    actual = {}
    for layout, way in CASES:
        if way == "checkpointed":
            plain.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        answer, expected = differentiate(used, layout, way), references[layout, way]
        if way == "checkpointed":
            plain.gradient_checkpointing_disable()
        gradient, right = gradients(model), answers[layout, way]
        if right is not None and rank:  # rank 0 has the column
            continue
        if answer is not None and right is not None:
            gradient, expected = {"column": answer}, {"column": right}
        assert gradient.keys() == expected.keys()
        assert expected
        size = max(float(each.abs().max()) for each in expected.values())
        assert size > 1e-4
        actual[f"{layout} {way}"] = max(float((gradient[n] - expected[n]).abs().max()) for n in expected) / size
    return actual


def run_rank(mode: str, rank: int, folder: str, result: Result) -> None:
    """Write the result of a rank."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    try:
        report: Any = result(mode, rank, f"{folder}/meeting")
    except arl.exceptions.AgentRLError as error:
        report = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the test shows it
        report = traceback.format_exc()
    Path(folder, str(rank)).write_text(json.dumps(report), encoding="utf-8")


def run_ranks(mode: str, result: Result = compare) -> Any:
    """Return the result of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                signal.alarm(300)  # a rank that waits forever for the other one
                os.environ.update(
                    RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
                )
                run_rank(mode, rank, folder, result)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        report = Path(folder, "0")
        return json.loads(report.read_text(encoding="utf-8")) if report.exists() else "rank 0 was ended"


if __name__ == "__main__":
    json.dump({mode: run_ranks(mode) for mode in sys.argv[1:]}, sys.stdout)
