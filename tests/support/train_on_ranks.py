"""Train tiny models on several gloo ranks; print the difference of all ranks from one process per case, as JSON.

    python train_on_ranks.py RANKS CASE ...

A case is a wrapper, an algorithm and options, joined by spaces, such as `ddp gspo accumulated`. All cases run in one
process group. The result of a case is a message if it fails; else for each compared thing the largest difference over
all ranks, and `moved`, the largest change of a parameter in one process.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.model.token_probe import Probe
from agentrl_core.recipes.vcpo import ScaleLearningRate
from agentrl_core.schedule import Above, Dual, SkipStep, StopTraining, SyncModel

STEPS = 3
BOUND = 0.15
CLIP_COV = recipes.GRPO.replace(loss=loss.Policy(mask=loss.CovarianceMask()))
RECIPES = {
    "grpo": recipes.GRPO,
    "gspo": recipes.GSPO.replace(minibatches=1),
    "ppo": recipes.PPO.replace(epochs=1),
    "rows": CLIP_COV.replace(minibatches=1),
    "skip": recipes.GRPO.replace(hooks=SkipStep(when=Above("approximate_kl", BOUND)), minibatches=3),
    "scaled": recipes.GRPO.replace(hooks=ScaleLearningRate(column="reward"), minibatches=3),
    "stop": recipes.GRPO.replace(hooks=StopTraining(when=Above("approximate_kl", BOUND), unit="steps"), minibatches=3),
    "dual": recipes.GRPO.replace(
        loss=loss.Policy(
            kl=loss.KL(Dual("approximate_kl", target=0.1, start=1.0, rate=0.5, at_least=0.1, every="step"))
        ),
        minibatches=3,
    ),
    "follow": recipes.GRPO.replace(
        hooks=(SyncModel("policy", "average", mix=0.5, unit="steps"), SyncModel("begin", "policy", mix=0.3))
    ),
}
"""Algorithms. A rank that read only its own packs' metrics would decide otherwise: 0.04 or 0.27 in the first step."""


def rollouts(groups: int = 3, *, few: bool = False) -> arl.Batch:
    """Return groups of three draws that share a prompt and first tokens, the fourth without a reward; or two draws."""
    forest = arl.Forest()
    for group in range(1 if few else groups):
        forest.add_group(group, f"task {group}")
        for member in range(2 if few else 3):
            length = 3 + 4 * member + group
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2, 3 + group], kind="prompt")
            tokens = [7, *((5 + 3 * member + place) % 64 for place in range(length))]
            forest.append(trajectory, tokens, kind="action", logprobs=[-4.0 - 0.5 * member] * (length + 1))
            forest.finish(trajectory, reward=float(member == group))
    return forest.freeze()


def new_model(*, critic: bool = False) -> Any:
    torch.manual_seed(1 if critic else 0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    model: Any = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
    if critic:
        model.value_head = nn.Linear(32, 1)
    return model


def meshes() -> Any:
    """Return a mesh with one dimension for all ranks and one for each rank alone."""
    return dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("all", "alone"))


def wrapped(model: Any, way: str, options: Sequence[str] = ()) -> Any:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if way == "fsdp1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if way.startswith("fsdp2"):
        device_meshes = meshes()
        mesh = {"fsdp2-hybrid": device_meshes, "fsdp2-alone": device_meshes["alone"]}.get(way, device_meshes["all"])
        sharding: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": way != "fsdp2-kept"}
        if "rounded" in options:
            kinds = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32, "output_dtype": torch.float32}
            sharding["mp_policy"] = MixedPrecisionPolicy(**kinds)
        for part in (*model.model.layers, model):
            fully_shard(part, **sharding)
    return model


def unsharded(tensor: Any) -> torch.Tensor:
    result: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result.detach().clone()


def parameters(model: Any) -> torch.Tensor:
    """Return all parameters of a model, in one vector."""
    gathered = contextlib.nullcontext()
    if isinstance(model, FullyShardedDataParallel):
        gathered = FullyShardedDataParallel.summon_full_params(model)
    with gathered:
        return torch.cat([unsharded(each).flatten() for each in model.parameters()])


def clip(model: Any, largest: float) -> float:
    """Clip the norm of the gradient of all ranks, and return the norm before."""
    if isinstance(model, FullyShardedDataParallel):
        return float(model.clip_grad_norm_(largest))
    return float(unsharded(nn.utils.clip_grad_norm_(model.parameters(), largest)))


class Reductions:
    """Record whether each backward pass leaves the gradients of all ranks in a model."""

    def __init__(self, model: Any) -> None:
        self.model, self.changes, self.count, self.sums = model, [], 0, None
        self.is_ddp = isinstance(model, nn.parallel.DistributedDataParallel)
        if self.is_ddp:
            model.register_comm_hook(None, lambda _, bucket: self.reduce(bucket))

    def reduce(self, bucket: Any) -> Any:
        self.count += 1
        return allreduce_hook(dist.group.WORLD, bucket)

    def look(self) -> None:
        """Look after a backward pass: sharded gradients appear when they are reduced."""
        grads = [
            None if each.grad is None else float(unsharded(each.grad).abs().sum()) for each in self.model.parameters()
        ]
        sums = self.count if self.is_ddp else grads
        self.changes.append(sums != self.sums)
        self.sums = sums

    def begin(self) -> None:
        self.sums = self.count if self.is_ddp else [None] * len(list(self.model.parameters()))


def on_first(value: Any) -> Any:
    """Return the value on rank 0 or in a single process; None on other ranks."""
    return value if not dist.is_initialized() or dist.get_rank() == 0 else None


def losses(update: Any, model: Any, options: list[str], shards: int | None) -> Iterator[torch.Tensor]:
    """Yield the losses of the packs of this rank; with `shards`, of all ranks in this process."""
    packing: dict[str, Any] = {"max_tokens": 24 if "accumulated" in options else 64}
    if update.prepared.loss.unit == "update" and "packed" not in options:
        yield from update.gradient_cached(model, **packing)
        return
    if update.prepared.loss.unit == "update":
        packing["max_tokens"] = 512
    sync = next((each for each in options if each in ("last", "each")), None)
    packing |= {"model": model, "layout": "padded" if "padded" in options else "auto"}
    if sync is not None:
        packing["sync"] = sync
    ranks = [update.pack(**packing)] if shards is None else update.pack(**packing, shards=shards)
    for packs in ranks:
        assert len(packs) > 0
        ran = 0
        for pack in packs:
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in options):
                output = loss.run_fused(model, pack, update.prepared.loss) if "fused" in options else pack.run(model)
            yield update.loss(output, pack)
            ran += 1
        assert ran == len(packs)


def train(way: str, algorithm: str, options: list[str], clipped_at: float | None, shards: int | None) -> dict[str, Any]:
    """Do three steps of gradient descent with clipping: return parameters, metrics and decisions.

    Without `clipped_at` gradients are clipped at three quarters of the first one. Half of that gradient is not clipped,
    so a wrong factor is not hidden.
    """
    recipe = RECIPES[algorithm]
    names = {"ppo": ("policy", "critic"), "follow": ("policy", "average")}.get(algorithm, ("policy",))
    plain = {name: new_model(critic=name == "critic") for name in names}
    initial = torch.cat([parameters(each) for each in plain.values()])
    batch = rollouts(4 if "idle" in options else 3, few="few" in options)
    group = meshes()["alone"].get_group() if way == "fsdp2-alone" else None
    if group is None:
        batch = on_first(batch)
    columns = {"ppo": {"old_value": "critic", "value": "critic"}, "dual": {"reference_logprob": "policy"}}
    columns["follow"] = columns["dual"]
    # Columns that ranks share differ by 1e-8, which bf16 rounds to 1e-3: with autocast each process makes all of them.
    models = plain if "autocast" in options else {name: wrapped(plain[name], way, options) for name in names}
    shared = {"group": dist.group.WORLD} if dist.is_initialized() and "autocast" not in options else {}
    for column, name in columns.get(algorithm, {}).items():
        if shared or batch is not None:
            batch = arl.annotate(batch, column, models[name], max_tokens=32, **shared)
    if "autocast" in options:
        models = {name: wrapped(plain[name], way, options) for name in names}
    if "checkpointed" in options:
        plain["policy"].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    kind, rate = (torch.optim.Adam, 1e-3) if "adam" in options else (torch.optim.SGD, 0.05)
    optimizers = {name: kind(models[name].parameters(), lr=rate) for name in names if name != "average"}
    if batch is not None:
        batch = recipe.credit(batch)
    reductions = Reductions(models["policy"]) if "counted" in options else None
    result: dict[str, Any] = {"steps": [], "norms": []}
    for _ in range(STEPS // recipe.minibatches):
        updates = recipe.updates(batch, models=models, draw_losses="recorded" in options, group=group)
        for update in updates:
            model = models[update.model]
            if reductions is not None:
                reductions.begin()
            for value in losses(update, model, options, shards):
                (value / dist.get_world_size() if "wrong" in options and dist.is_initialized() else value).backward()
                if reductions is not None:
                    reductions.look()
            if way == "bare" and dist.is_initialized():
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            clipped_at = clipped_at or 0.75 * clip(model, math.inf)
            result["norms"].append(clip(model, clipped_at))
            result["steps"].append(update.step(optimizers[update.model]))
        recipe.run_hooks(updates)
    if batch is not None:  # no other rank requests them
        result["metrics"] = updates.metrics
        if "recorded" in options:
            result["draw_losses"] = updates.with_losses().column("loss", "draw").tolist()
    ended = torch.cat([parameters(each) for each in models.values()])
    return {
        **result,
        "clipped_at": clipped_at,
        "parameters": ended,
        "moved": float((ended - initial).abs().max()),
        "reduced": None if reductions is None else reductions.changes,
    }


def compare(case: str, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the largest differences of any rank from one process."""
    way, algorithm, *options = case.split()
    actual = train(way, algorithm, options, reference["clipped_at"], None)
    assert actual["steps"] == reference["steps"], (actual["steps"], reference["steps"])
    differences = {
        "parameters": float((actual["parameters"] - reference["parameters"]).abs().max()),
        "gradients": max(map(distance, actual["norms"], reference["norms"])),
        "metrics": 0.0,
    }
    if "metrics" in actual:
        metrics, expected = actual["metrics"], reference["metrics"]
        assert metrics.keys() == expected.keys(), (metrics.keys(), expected.keys())
        numbers = [name for name, value in expected.items() if isinstance(value, float)]
        differences["metrics"] = max(distance(metrics[name], expected[name]) for name in numbers)
        for name, steps in expected.get("steps", {}).items():
            assert len(steps) > 1
            differences["metrics"] = max(differences["metrics"], *map(distance, metrics["steps"][name], steps))
    if "draw_losses" in actual:
        assert len(set(actual["draw_losses"])) > 3
        pairs = zip(actual["draw_losses"], reference["draw_losses"], strict=True)
        differences["metrics"] = max(differences["metrics"], *(distance(*each) for each in pairs))
    worst = torch.tensor(list(differences.values()), dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    clipped = [norm > reference["clipped_at"] for norm in reference["norms"]]
    return {
        **dict(zip(differences, worst.tolist(), strict=True)),
        "moved": reference["moved"],
        "clipped": sum(clipped),
        "steps": reference["steps"],
        "reduced": actual["reduced"],
    }


def distance(one: float, other: float) -> float:
    return abs(one - other) / (1 + abs(other))


def annotated(way: str) -> list[torch.Tensor]:
    """Return columns that a model makes, and a function, for tokens, steps and a probe."""
    model, everyone = wrapped(new_model(critic=True), way), dist.group.WORLD if dist.is_initialized() else None
    batch, whole_batch = on_first(rollouts()), rollouts()
    shared: dict[str, Any] = {"max_tokens": 32}
    if dist.is_initialized() and way == "bare":
        shared["group"] = dist.group.WORLD
    counts: list[int] = []

    def double(pack: Any) -> torch.Tensor:
        counts.append(len(pack.target))
        return pack.target * 2.0

    probe = Probe([[3, 4, 5 + draw] for draw in range(whole_batch.num_draws)], start=1)
    for column, answering, options in (
        ("reference_logprob", model, {}),
        ("recomputed_logprob", model, {"layout": "padded"}),
        ("old_value", model, {"level": "step"}),
        ("answer_logprob", model, {"probe": probe}),
        ("double", double, {"group": everyone}),
    ):
        batch = arl.annotate(batch, column, answering, **{**shared, **options})
    batch = arl.annotate(batch, "gradient_norm", new_model(), level="draw", group=everyone)
    if everyone is not None:
        assert sum(counts) < len(whole_batch.column("token", "node_token")) // 2 + 8
    if batch is None:
        return []
    levels = {"old_value": "step", "answer_logprob": "step", "answer_logprob_before": "draw", "gradient_norm": "draw"}
    columns = ("reference_logprob", "recomputed_logprob", "double", *levels)
    return [torch.tensor(batch.column(each, levels.get(each, "node_token"))) for each in columns]


def compare_columns(way: str, references: list[torch.Tensor]) -> dict[str, float]:
    worst = torch.zeros(1, dtype=torch.float64)
    for actual, expected in zip(annotated(way), on_first(references) or [], strict=True):
        assert torch.equal(actual.isnan(), expected.isnan())
        assert expected.isfinite().any()
        worst = torch.maximum(worst, (actual - expected).nan_to_num().abs().max().double())
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return {"columns": float(worst)}


class OnRankZero:
    """A collector that only rank 0 may call."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def __call__(self, *, tasks: int, group_size: int) -> arl.Batch:
        assert dist.get_rank() == 0
        assert tasks * group_size > 0
        return rollouts()

    def end_iteration(self, _: arl.Batch, metrics: dict[str, Any]) -> None:
        assert dist.get_rank() == 0
        self.metrics = metrics


def page() -> dict[str, float]:
    """Run the loop of the page on models; return the differences of its parameters and metrics from one process."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "fully_shard" in code)
    alone, names = new_model(), {"model": new_model(), "recipe": recipes.GRPO, "collector": OnRankZero()}
    exec(code, names)
    updates = recipes.GRPO.updates(recipes.GRPO.credit(rollouts()), group=meshes()["alone"].get_group())
    optimizer = torch.optim.SGD(alone.parameters(), lr=1e-3)
    for update in updates:
        for pack in update.pack(max_tokens=16_384):
            update.loss(pack.run(alone), pack).backward()
        clip(alone, 1.0)
        update.step(optimizer)
    difference = float((parameters(names["model"]) - parameters(alone)).abs().max())
    moved = float((parameters(new_model()) - parameters(alone)).abs().max())
    if dist.get_rank() == 0:
        metrics: Any = names["collector"].metrics
        assert distance(metrics["loss"], updates.metrics["loss"]) < 1e-6
    return {"parameters": difference, "gradients": 0.0, "metrics": 0.0, "moved": moved, "clipped": 1.0}


def refused(case: str) -> str:
    """Return the error or warning of an unsupported setup."""
    model = new_model()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batch = recipes.GRPO.credit(rollouts())
    if case == "batches":
        recipes.GRPO.updates(batch)
    elif case == "batches to annotate":
        arl.annotate(batch, "reference_logprob", model, group=dist.group.WORLD)
    elif case == "no batch":
        recipes.GRPO.updates(None)
    (update,) = recipes.GRPO.updates(on_first(batch))
    packing: dict[str, Any] = {"max_tokens": 64}
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    if case == "short packs":
        packing["max_tokens"] = 4
    elif case == "wrong shards":
        packing["shards"] = ranks + 1
    elif case == "other group":
        alone = [dist.new_group([each]) for each in range(ranks)]
        model = nn.parallel.DistributedDataParallel(model, process_group=alone[rank])
    elif case == "layers alone":
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
    elif case == "divided":
        fully_shard(model, mesh=mesh).set_gradient_divide_factor(1.0)
    elif case.startswith("tensor parallel"):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        model = parallelize_module(model, mesh, {"model.layers.*.mlp.up_proj": ColwiseParallel()})
        if case != "tensor parallel":
            two = dist.device_mesh.init_device_mesh("cpu", (1, ranks), mesh_dim_names=("data", "tensor"))
            model = parallelize_module(new_model(), two["tensor"], {"model.layers.*.mlp.up_proj": ColwiseParallel()})
            fully_shard(model, mesh=two["data"])
    elif case == "module of ddp":
        ddp = nn.parallel.DistributedDataParallel(model)
        model = ddp.module
    elif case == "own output":
        from agentrl_core.model.pack import PackOutput

        for pack in update.pack(**packing):
            update.loss(PackOutput(pack.streams.old_logprob.requires_grad_(), pack.streams.old_logprob), pack)
    for pack in update.pack(**packing):
        update.loss(pack.run(model), pack).backward()
    return "nothing was refused"


def on_rank(rank: int, ranks: int, cases: list[str], folder: Path) -> None:
    """Write the results of a rank."""
    warnings.filterwarnings("ignore")
    warnings.filterwarnings("error", category=arl.exceptions.AgentRLWarning)
    torch.set_num_threads(1)
    references: dict[str, Any] = {}
    for case in cases:
        if case.startswith("annotated"):
            references[case] = annotated("bare")
        elif case != "page" and not case.startswith("refused"):
            _, algorithm, *options = case.split()
            base_options = [each for each in options if each not in ("last", "each", "wrong", "counted")]
            name = " ".join([algorithm, *base_options])
            same_packs = ranks if "autocast" in options else None  # packs are rounded
            if "rounded" not in options:
                references[case] = references[name] = references.get(name) or train(
                    "bare", algorithm, base_options, None, same_packs
                )
    dist.init_process_group(
        "gloo", f"file://{folder / 'meeting'}", dt.timedelta(seconds=60), world_size=ranks, rank=rank
    )
    report: dict[str, Any] = {}
    for case in cases:
        if "rounded" in case:  # by FSDP, so by one that has one rank
            _, algorithm, *options = case.split()
            references[case] = train("fsdp2-alone", algorithm, options, None, ranks)
        try:
            kind, _, name = case.partition(" ")
            if kind == "page":
                report[case] = page()
            elif kind == "refused":
                report[case] = refused(name)
            elif kind == "annotated":
                report[case] = compare_columns(name, references[case])
            else:
                with warnings.catch_warnings(action="ignore" if kind == "bare" else "error"):
                    report[case] = compare(case, references[case])
        except (arl.exceptions.AgentRLError, arl.exceptions.AgentRLWarning) as error:
            report[case] = f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - the test shows it
            report[case] = traceback.format_exc()
        (folder / str(rank)).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


def run_ranks(ranks: int, cases: list[str]) -> dict[str, Any]:
    """Return the results of rank 0; messages are those of all ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                signal.alarm(900)  # a rank that waits forever for another one
                on_rank(rank, ranks, cases, folder)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        first, *others = [json.loads((folder / str(rank)).read_text(encoding="utf-8")) for rank in range(ranks)]
        for case, result in first.items():
            outcomes = [each.get(case) for each in (first, *others)]
            messages = dict.fromkeys(each for each in outcomes if not isinstance(each, dict))
            first[case] = " | ".join(map(str, messages)) or result
        return dict(first)


if __name__ == "__main__":
    json.dump(run_ranks(int(sys.argv[1]), sys.argv[2:]), sys.stdout)
