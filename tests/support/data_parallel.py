"""Compute a gradient on two ranks in each mode of data-parallel training; print the results of rank 0 as JSON.

The result of a mode is {"difference": d}, the largest difference to the gradient of one process or to half of it. If
the mode fails, it is {"error": message, "by_package": true if the error is one of agentrl_core.exceptions}.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import AgentRLError

MODES = ("all_reduce", "ddp", "ddp.module", "fsdp2")


def rollouts():
    forest = arl.Forest()
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(3):
            length = 3 + 4 * member
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2], kind="prompt")
            forest.append(trajectory, [5 + member] * length, kind="action", logprobs=[-0.5] * length)
            forest.finish(trajectory, reward=float(member == group))
    return recipes.GRPO.credit(forest.freeze())


def new_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=4, num_key_value_heads=2, **sizes))


def backward(model, rank):
    for update in recipes.GRPO.updates(None if rank else rollouts()):
        for pack in update.pack(max_tokens=32):
            update.loss(pack.run(model), pack).backward()


def compare(mode, rank, meeting):
    """Return the difference between a rank's gradient and that of one process."""
    alone = new_model()
    backward(alone, 0)
    expected = alone.lm_head.weight.grad
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = new_model()
    runs = model
    if mode.startswith("ddp"):
        wrapper = torch.nn.parallel.DistributedDataParallel(model)
        runs = wrapper.module if mode == "ddp.module" else wrapper
    if mode == "fsdp2":
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    backward(runs, rank)
    if mode == "all_reduce":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    gradient = model.lm_head.weight.grad
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return min(float((gradient * scale - expected).abs().max()) for scale in (1, 2))


def run_rank(mode, rank, folder):
    try:
        report = {"difference": compare(mode, rank, f"{folder}/meeting")}
    except Exception as error:  # noqa: BLE001 -- the test checks the error
        report = {"error": f"{type(error).__name__}: {error}", "by_package": isinstance(error, AgentRLError)}
    Path(folder, str(rank)).write_text(json.dumps(report), encoding="utf-8")


def run_ranks(mode):
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                signal.alarm(300)  # a rank that waits forever for the other one
                run_rank(mode, rank, folder)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return json.loads(Path(folder, "0").read_text(encoding="utf-8"))


if __name__ == "__main__":
    json.dump({mode: run_ranks(mode) for mode in MODES}, sys.stdout)
