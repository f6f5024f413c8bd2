"""`agentrl train`: the loop of the README, extended to run every recipe. Read it and copy it.

It builds and warms up a small model (or loads a local one), evaluates it on held-out tasks, trains it with a recipe,
and evaluates it again. The run directory is a `Store` with all training data. It also has `recipe.toml` (recipe and
options), the checkpoints, `summary.json` and `learning_curve.png`.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch

from agentrl_core import engine as engines
from agentrl_core import env
from agentrl_core._util.files import UNFINISHED, new_file, new_folder, remove_unfinished, rename_whole, sync_folder
from agentrl_core.collect import Collector
from agentrl_core.collect import Progress as Rollouts
from agentrl_core.data.batch import Batch
from agentrl_core.data.store import Store
from agentrl_core.env.base import Environment
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError
from agentrl_core.integrations import TensorBoard, WeightsAndBiases
from agentrl_core.recipe import Recipe
from agentrl_core.train.models import Models, check_runs, other_stages
from agentrl_core.train.options import KEPT, TrainOptions
from agentrl_core.train.warm_start import warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl_core.engine.base import Engine


class TrainingProgress(Protocol):
    """Interface of progress displays of a run."""

    def phase(self, name: str, total: int) -> None:
        """Start a phase of `total` steps."""

    def step(self, count: int = 1, /, **shown: float) -> None:
        """Report finished steps of the phase; `shown` has the latest numbers."""

    def rollouts(self, progress: Rollouts) -> None:
        """Report the progress of rollouts, ten times a second. A KeyboardInterrupt here stops the run cleanly."""


def train(options: TrainOptions, recipe: Recipe, progress: TrainingProgress) -> dict[str, Any]:
    """Run a recipe from the warm start to the evaluation, and return the contents of `summary.json`.

    Raises:
        InvalidInputError: the run directory has a run and `resume` is not set; or the resumed run had another recipe or
            other options.
        KeyboardInterrupt: the run was interrupted; `resume` continues it.
    """
    world = options.environment()
    check_runs(recipe, world, options.group_size, adapter=options.lora > 0)
    run = Path(options.run)
    with Store.open(run) as store:  # with the writer's lock
        remove_unfinished(run)
        _begin(options, recipe, run, store)
        seconds: dict[str, float] = defaultdict(float, store.state.get("metrics", {}).get("seconds", {}))
        torch.manual_seed(options.seed)
        with _timed(seconds, "warm_start"):
            policy, tokenizer = _policy(options, run, world, store, progress)
        generate = _engine(options, run, policy, tokenizer)
        try:
            return _learn(options, recipe, progress, store, world, policy, tokenizer, generate, seconds)
        finally:
            generate.close()


def begun(run: Path) -> tuple[Recipe, dict[str, Any]] | None:
    """Return the recipe and options that a run started with; None without a run.

    Raises:
        InvalidInputError: its `recipe.toml` is truncated, as after a kill, or cannot be read.
        RecipeError: it is not a recipe of this version.
    """
    about = run / "recipe.toml"
    if not about.is_file():
        return None
    try:
        table = tomllib.loads(about.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        table, why = {}, str(error)
    else:
        why = "options of table [train] are missing"
    options = table.pop("train", {})
    if options:
        options.setdefault("staleness", 0)  # earlier versions had only this one
        options.setdefault("instructions", "off")  # and gave none
        options.setdefault("learning_rate", 5e-4)
        for option in fields(TrainOptions):
            if option.name in KEPT:
                options.setdefault(option.name, option.default)
    if not options.keys() >= KEPT:
        raise InvalidInputError(
            f"{about} is incomplete: {why}; the run was killed while it started, or the file was edited. If nothing "
            f"was trained yet, remove the file to start again; otherwise restore it"
        )
    return Recipe.from_dict(table), options


def _begin(options: TrainOptions, recipe: Recipe, run: Path, store: Store) -> None:
    """Record recipe and options of the run; refuse to resume with others."""
    about = run / "recipe.toml"
    before = begun(run)
    if before is None:
        if store.version:
            raise InvalidInputError(f"{run} has a store that agentrl train did not create; choose another --run")
        text = recipe.to_toml() + _options_toml(options)
        with new_file(about) as file:
            file.write(text.encode())
        return
    if not options.resume:
        raise InvalidInputError(f"{run} already has a run; pass --resume to continue it, or choose another --run")
    old, values = before
    if old != recipe:
        raise InvalidInputError(
            f"{run} started with recipe {old.name!r} as in {about}, not with {recipe.name!r} as given; omit --recipe "
            f"to continue it, or choose another --run"
        )
    for name, value in _kept_options(options).items():
        if values.get(name) != value:
            raise InvalidInputError(
                f"{run} started with {name}={values.get(name)!r}, not {value!r}; omit the option to continue, choose "
                f"another --run, or change it in {about}"
            )


def _kept_options(options: TrainOptions) -> dict[str, Any]:
    """Return the options that stay fixed when a run resumes; its length and the machine may change."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(options).items()}
    return {name: value for name, value in values.items() if name in KEPT}


def _options_toml(options: TrainOptions) -> str:
    lines = (f"{name} = {json.dumps(value)}" for name, value in _kept_options(options).items())
    return "\n".join(["", "[train]", *lines, ""])


def _learn(
    options: TrainOptions,
    recipe: Recipe,
    progress: TrainingProgress,
    store: Store,
    world: Environment,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    generate: Engine,
    seconds: dict[str, float],
) -> dict[str, Any]:
    models = Models(
        recipe,
        policy,
        _start(Path(options.run), policy),
        options.highest_rate,
        options.seed,
        autocast=options.precision == "bf16",
        recompute=options.recompute,
    )
    sampling = engines.Sampling(max_tokens=options.turn_tokens)
    limits = {"sampling": sampling, "context_tokens": options.context_tokens, "progress": progress.rollouts}
    collect = Collector(
        generate,
        world,
        recipe,
        store=store,
        seed=options.seed,
        task_pool=options.task_pool,
        staleness=options.staleness,
        allow_changes=True,  # options are checked against recipe.toml, in which users can change them
        **limits,  # type: ignore[arg-type]
    )
    for name in options.loggers:
        collect.on_iteration(_logger(name, options))
    with closing(collect):  # prefetching ends with the loop, even after an error
        return _loop(options, recipe, progress, store, collect, policy, tokenizer, generate, models, seconds)


def _loop(
    options: TrainOptions,
    recipe: Recipe,
    progress: TrainingProgress,
    store: Store,
    collect: Collector,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    generate: Engine,
    models: Models,
    seconds: dict[str, float],
) -> dict[str, Any]:
    run = Path(options.run)
    measured = store.state.get("metrics", {})
    if store.iteration:
        models.load_state_dict(_checkpoint(run, store))
        _drop_checkpoints(run, str(store.state["checkpoint"]))  # a kill may have come before it did
        generate.update_weights(policy, version=store.iteration)
    generated = int(measured.get("generated_tokens", 0))

    def success(phase: str) -> float:
        # The same tasks and seeds before and after: with unchanged weights the difference is exactly zero.
        progress.phase(phase, 1)
        with _timed(seconds, "evaluate"):
            found = collect.evaluate(tasks=options.held_out).success
        progress.step(success=found)
        return found

    success_before = measured.get("success_before")
    if success_before is None:
        success_before = success("evaluate before")
    best = float(measured.get("best_success", -1.0))
    progress.phase(f"train {recipe.name}", options.iterations)
    progress.step(min(collect.iteration, options.iterations))
    for iteration in range(collect.iteration, options.iterations):
        with _timed(seconds, "collect"):
            group = recipe.rollout.at(iteration).final_group_size(options.group_size)
            batch = collect(tasks=max(options.rollouts // group, 1), group_size=options.group_size)
        with _timed(seconds, "update"):
            stepping: dict[str, Any] = {
                "rate": options.highest_rate * _schedule(options, iteration),
                "gradient_clip": options.gradient_clip,
                "max_tokens": options.pack_tokens,
            }
            batch = models.annotated(batch, options.pack_tokens)
            for stage in other_stages(recipe) if iteration == 0 else ():
                models.step(recipe.updates(batch, stage=stage, seed=options.seed), **stepping)
            batch = recipe.credit(batch)
            updates = recipe.updates(batch, seed=options.seed + iteration, models=models.named)
            models.step(updates, **stepping)
            recipe.run_hooks(updates, **models.named)
            generate.update_weights(policy, version=iteration + 1)
        with _timed(seconds, "store"):
            shown = _shown(batch)
            generated += int(shown["sampled_tokens"])
            kept = {"update": updates.metrics, **shown, "generated_tokens": generated, "success_before": success_before}
            if options.evaluate_every and (iteration + 1) % options.evaluate_every == 0:
                kept["held_out_success"] = success(f"evaluate after {iteration + 1}")
                if kept["held_out_success"] > best:
                    best = kept["held_out_success"]
                    _save_folder(run, "best", policy, tokenizer)
                progress.phase(f"train {recipe.name}", options.iterations)
                progress.step(iteration)
            kept["best_success"] = best
            checkpoint = _save_checkpoint(run, iteration + 1, models.state_dict())
            collect.end_iteration(batch, {**kept, "seconds": dict(seconds)}, checkpoint=checkpoint)
            _drop_checkpoints(run, checkpoint)
        progress.step(**shown)
    collect.close()  # drops prefetched iterations that are not needed
    success_after = success("evaluate after")
    _save_folder(run, "last", policy, tokenizer)
    summary = {
        "seed": options.seed,
        "recipe": recipe.name,
        "engine": options.engine,
        "success_before": success_before,
        "success_after": success_after,
        **({"best_success": best} if options.evaluate_every else {}),
        "held_out_tasks": options.held_out,
        "iterations": options.iterations,
        "generated_tokens": generated,
        "seconds": {phase: round(value, 2) for phase, value in seconds.items()},
    }
    with new_file(run / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())
    return summary


def _policy(
    options: TrainOptions, run: Path, world: Environment, store: Store, progress: TrainingProgress
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the model to train and its tokenizer: the last checkpoint, a local model, or a small new one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has its own
    policy: Any
    tokenizer: Any
    start = run / "start"
    if not start.is_dir():
        if options.model:
            policy = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
        else:
            if not isinstance(world, env.ReasoningGym):
                raise InvalidInputError(
                    f"model: env={options.env!r} has no demonstrations to warm up a small model with; give --model, "
                    "the directory of a saved model"
                )
            progress.phase("warm start", options.warm_start_steps)
            policy, tokenizer = warm_start(
                world,
                seed=options.seed,
                steps=options.warm_start_steps,
                progress=lambda _, loss: progress.step(loss=loss),
            )
        # Renamed when complete, so that an interrupted warm start is not used.
        half = new_folder(start)
        policy.save_pretrained(half)
        tokenizer.save_pretrained(half)
        rename_whole(half, start)
    policy = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(start, local_files_only=True)
    if options.lora:
        policy = _with_adapter(policy, options)
    if options.recompute:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if store.iteration:
        policy.load_state_dict(_checkpoint(run, store)["models"]["policy"])
    return policy.to(options.device), tokenizer


def _start(run: Path, policy: PreTrainedModel) -> PreTrainedModel:
    """Return the policy from before reinforcement learning."""
    from transformers import AutoModelForCausalLM

    start: Any = AutoModelForCausalLM.from_pretrained(run / "start", dtype=torch.float32, local_files_only=True)
    start.to(policy.device)
    return cast("PreTrainedModel", start)


def _engine(options: TrainOptions, run: Path, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Engine:
    if options.engine == "vllm":
        return engines.Vllm(str(run / "start"), tokenizer, max_model_len=options.context_tokens)
    # An engine that generates during training needs its own weights.
    return engines.Transformers(policy, tokenizer, copy=options.staleness > 0)


def _with_adapter(policy: PreTrainedModel, options: TrainOptions) -> Any:
    """Return the policy in a LoRA adapter on all its linear layers."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingDependencyError("lora needs the package peft: pip install peft") from error
    torch.manual_seed(options.seed)
    adapter = LoraConfig(
        r=options.lora, lora_alpha=2 * options.lora, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(policy, adapter)


def _schedule(options: TrainOptions, iteration: int) -> float:
    """Return the learning-rate factor: linear warm-up over 4 iterations, then 1 or a half cosine from 1 to 0.1."""
    if iteration < 4:
        return (iteration + 1) / 4
    if options.schedule == "constant":
        return 1.0
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (iteration - 3) / max(options.iterations - 3, 1)))


def _logger(name: str, options: TrainOptions) -> Callable[[int, Mapping[str, Any]], object]:
    """Return the function that logs the metrics of an iteration."""
    if name == "tensorboard":
        return TensorBoard(Path(options.run) / "tensorboard")
    return WeightsAndBiases(project="agentrl", name=Path(options.run).name, dir=options.run)


def _save_folder(run: Path, name: str, policy: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a folder that transformers and vLLM load, with an adapter merged into its model; replace an earlier one."""
    merged = copy.deepcopy(policy).merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
    half = new_folder(run / name)
    merged.save_pretrained(half)
    tokenizer.save_pretrained(half)
    if (run / name).exists():
        shutil.rmtree(run / name)
    rename_whole(half, run / name)


def _shown(batch: Batch) -> dict[str, float]:
    """Return the numbers of the progress bar."""
    drawn = batch.num_draws > 0
    entropy, success = batch.column("entropy", "node_token"), batch.column("success", "draw")
    return {
        "success": float(np.nanmean(success)) if np.isfinite(success).any() else math.nan,
        "reward": float(np.nanmean(batch.column("reward", "draw"))) if drawn else math.nan,
        "entropy": float(np.nanmean(entropy)) if np.isfinite(entropy).any() else math.nan,
        "sampled_tokens": float(np.isfinite(batch.column("behaviour_logprob", "node_token")).sum()),
        "sharing": batch.sharing_ratio,
    }


def _checkpoint(run: Path, store: Store) -> dict[str, Any]:
    """Return the checkpoint of the last closed iteration."""
    return torch.load(run / str(store.state["checkpoint"]), map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def _save_checkpoint(run: Path, iteration: int, state: Mapping[str, Any]) -> str:
    """Write the weights after an iteration durably. Older ones stay until the store refers to the new ones."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        folder.mkdir()
        sync_folder(run)
    path = folder / f"{iteration:08d}.pt"
    with new_file(path) as file:
        torch.save(state, file)
    return str(path.relative_to(run))


def _drop_checkpoints(run: Path, keep: str) -> None:
    """Remove unfinished checkpoints, and all others except the one that the store refers to."""
    for path in (run / "checkpoints").iterdir():
        if path != run / keep and path.suffix in (".pt", ".tmp", UNFINISHED):
            path.unlink()


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - begin
