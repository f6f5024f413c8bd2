"""Give sharded weights on two ranks to engines; print the results as JSON.

For each mode: the largest difference of log-probs of the engine's model to those of the policy in one process, whether
the policy's own shards are bit for bit as before, messages, and the peak of memory.
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
from torch import nn
from wrapped_ranks import new_model, wrapped

import agentrl_core as arl
from agentrl_core import engine, env, warm_start
from agentrl_core.engine import checkpoint_folder
from agentrl_core.engine.checkpoint_folder import write_checkpoint
from agentrl_core.engine.policy_weights import PolicyWeights
from agentrl_core.engine.weight_layout import weights_to_load

LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 48, "vocab_size": 64}


def logits(model: nn.Module) -> torch.Tensor:
    """Return log-probs of a row."""
    with torch.no_grad():
        values: torch.Tensor = model.eval()(input_ids=torch.arange(1, 20)[None]).logits[0]
    return values.log_softmax(-1)


def local(model: nn.Module) -> list[torch.Tensor]:
    """Return the part of the weights on this rank."""
    return [getattr(each, "_local_tensor", each).detach().clone() for each in model.parameters()]


def update(mode: str, rank: int) -> dict[str, Any]:
    """Return the results of a mode on rank 0."""
    expected = logits(new_model(mode))
    model = wrapped(new_model(mode), mode)
    before = local(model)
    source: Any = model.state_dict() if "state" in mode else model
    results: dict[str, Any] = {}
    if rank == 0 or mode.endswith("both"):
        tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)[1]
        other = new_model("fsdp2")
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(0.5)
        generate = engine.Transformers(other, tokenizer, copy=True)
        generate.update_weights(source, version=1)
        results["difference"] = float((logits(generate.model) - expected).abs().max())
        messages = []
        small = new_model("fsdp2")
        small.model.norm.weight = nn.Parameter(torch.ones(7))
        for target, version in ((generate, "new"), (engine.Transformers(small, tokenizer, copy=True), 1)):
            try:
                target.update_weights(source, version=version)  # type: ignore[arg-type]
            except arl.exceptions.AgentRLError as error:
                messages.append(str(error))
        results["messages"] = messages
        results["version"] = generate.policy_version
    else:
        engine.send_weights(source)
        messages = []
        for _ in range(2):
            try:
                engine.send_weights(source)
            except arl.exceptions.EngineError as error:
                messages.append(str(error))
        results["messages"] = messages
    results["unchanged"] = all(torch.equal(*pair) for pair in zip(local(model), before, strict=True))
    return results


def resident() -> int:
    """Return the largest memory of this process since the last call, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    bytes_ = int(status.split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return bytes_


def measure(rank: int) -> dict[str, Any]:
    """Return memory above that of a rank while it gathers a 48-layer model into a checkpoint, and all of it at once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **LARGE))
    size = sum(parameter.nbytes for parameter in model.parameters())
    model = wrapped(model, "fsdp2")
    tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)[1]
    with tempfile.TemporaryDirectory() as folder, PolicyWeights(model) as weights:
        resident()
        start = resident()
        if rank == 0:
            checkpoint_folder.FILE_BYTES = size // 16
            write_checkpoint(Path(folder), weights.model, weights_to_load(weights, None), tokenizer)
        else:
            weights.follow()
    peak = resident() - start
    everything = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
    return {"bytes": size, "peak": peak, "whole": resident() - start, "count": len(everything)}


def run_rank(mode: str, rank: int, ranks: int, folder: str) -> None:
    """Write the result of a rank."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
        report: Any = measure(rank) if mode == "memory" else update(mode, rank)
    except BaseException:  # noqa: BLE001 - the test shows it
        report = traceback.format_exc()
    Path(folder, str(rank)).write_text(json.dumps(report), encoding="utf-8")


def run_ranks(mode: str) -> Any:
    """Return the results of both ranks, or of the only one."""
    ranks = 1 if mode.endswith("alone") else 2
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                signal.alarm(300)  # a rank that waits forever for the other one
                run_rank(mode, rank, ranks, folder)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        reports = [Path(folder, str(rank)) for rank in range(ranks)]
        return [json.loads(each.read_text("utf-8")) if each.exists() else "it was ended" for each in reports]


if __name__ == "__main__":
    json.dump({mode: run_ranks(mode) for mode in sys.argv[1:]}, sys.stdout)
