"""`agentrl train`: the loop of the README, extended to run every recipe. Read it and copy it.

It builds and warms up a small model (or loads a local one), evaluates it on held-out tasks, trains it with a recipe,
and evaluates it again. The run directory is a `Store` with all training data. It also has `recipe.toml` (recipe and
options), the checkpoints, `summary.json` and `learning_curve.png`.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch

from agentrl_core import engine as engines
from agentrl_core import env
from agentrl_core._util.files import new_file, new_folder, remove_unfinished, rename_whole
from agentrl_core.collect import Collector
from agentrl_core.collect import Progress as Rollouts
from agentrl_core.collect.evaluation_result import Evaluation
from agentrl_core.data.batch import Batch
from agentrl_core.data.store import Store
from agentrl_core.env.base import Environment
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError
from agentrl_core.integrations import TensorBoard, WeightsAndBiases
from agentrl_core.model.annotate import Given
from agentrl_core.model.routers import routers_of
from agentrl_core.model.teacher import check_tokenizers
from agentrl_core.recipe import Recipe
from agentrl_core.stats.intervals import bootstrap
from agentrl_core.train.calculator_demonstrations import imitate
from agentrl_core.train.models import Models, check_runs, other_stages
from agentrl_core.train.options import TrainOptions
from agentrl_core.train.run_files import begin, drop_checkpoints, load_checkpoint, save_checkpoint, save_folder
from agentrl_core.train.torchrun import from_first_rank, is_first_rank, joined_ranks
from agentrl_core.train.warm_start import warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl_core.engine.base import Engine


class TrainingProgress(Protocol):
    """Interface of progress displays of a run; that of the command line is in `cli`, which imports this package."""

    def phase(self, name: str, total: int) -> None:
        """Start a phase of `total` steps."""

    def step(self, count: int = 1, /, **shown: float) -> None:
        """Report finished steps of the phase; `shown` has the latest numbers."""

    def rollouts(self, progress: Rollouts) -> None:
        """Report the progress of rollouts, ten times a second. A KeyboardInterrupt here stops the run cleanly."""


def train(options: TrainOptions, recipe: Recipe, progress: TrainingProgress) -> dict[str, Any]:
    """Run a recipe from the warm start to the evaluation; return the contents of `summary.json`, {} on other ranks.

    With torchrun, the first rank collects and writes the run, and all ranks train a part of every batch (data parallel,
    by `DistributedDataParallel`). Ranks other than the first return an empty dict.

    Raises:
        InvalidInputError: the run directory has a run and `resume` is not set; or the resumed run had another recipe or
            other options.
        KeyboardInterrupt: the run was interrupted; `resume` continues it.
    """
    world = options.environment()
    check_runs(recipe, world, options.group_size, adapter=options.lora > 0, teacher=bool(options.teacher))
    if options.teacher:
        check_tokenizers((_tokenizer(options.model), _tokenizer(options.teacher)))
    with joined_ranks(options.device) as device:
        options = replace(options, device=device)
        if is_first_rank():
            return _train(options, recipe, progress, world)
        _follow(options, recipe)
    return {}


def _train(options: TrainOptions, recipe: Recipe, progress: TrainingProgress, world: Environment) -> dict[str, Any]:
    """Open the store of a run, prepare its model and engine, and train; return the contents of `summary.json`."""
    run = Path(options.run)
    with Store.open(run) as store:  # with the writer's lock
        remove_unfinished(run)
        begin(options, recipe, run, store)
        seconds: dict[str, float] = defaultdict(float, store.state.get("metrics", {}).get("seconds", {}))
        torch.manual_seed(options.seed)
        with _timed(seconds, "warm_start"):
            _prepare_start(options, run, world, progress)
            policy, tokenizer = _policy(options)
        generate = _engine(options, run, policy, tokenizer)
        try:
            return _learn(options, recipe, progress, store, world, policy, tokenizer, generate, seconds)
        finally:
            generate.close()


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
    checkpoint = from_first_rank(str(store.state["checkpoint"]) if store.iteration else "")
    models = _models(options, recipe, policy, checkpoint)
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
        drop_checkpoints(run, str(store.state["checkpoint"]))  # again, if the run was killed before it finished
        generate.update_weights(policy, version=store.iteration)
    generated = int(measured.get("generated_tokens", 0))

    def evaluated(phase: str) -> Evaluation:
        # The same tasks and seeds before and after: with unchanged weights the difference is exactly zero.
        progress.phase(phase, 1)
        with _timed(seconds, "evaluate"):
            evaluation = collect.evaluate(tasks=options.held_out)
        progress.step(success=evaluation.success)
        return evaluation

    before = run / "before.json"
    if not before.is_file() and "success_before" not in measured:
        with new_file(before) as file:
            file.write(json.dumps(evaluated("evaluate before").successes.tolist()).encode())
    # Earlier versions stored only the mean.
    solved_before = json.loads(before.read_text()) if before.is_file() else measured["success_before"]
    success_before = float(np.mean(solved_before))
    best = float(measured.get("best_success", -1.0))
    progress.phase(f"train {recipe.name}", options.iterations)
    progress.step(min(collect.iteration, options.iterations))
    for iteration in range(collect.iteration, options.iterations):
        with _timed(seconds, "collect"):
            group = recipe.rollout.at(iteration).final_group_size(options.group_size)
            batch = collect(tasks=max(options.rollouts // group, 1), group_size=options.group_size)
        with _timed(seconds, "update"):
            from_first_rank(iteration)
            batch, metrics = _update(options, recipe, models, batch, iteration)
            generate.update_weights(policy, version=iteration + 1)
        with _timed(seconds, "store"):
            progress_numbers = _shown(batch)
            generated += int(progress_numbers["sampled_tokens"])
            stored_metrics: dict[str, Any] = {
                "update": metrics,
                **progress_numbers,
                "generated_tokens": generated,
                "success_before": success_before,
            }
            if options.evaluate_every and (iteration + 1) % options.evaluate_every == 0:
                stored_metrics["held_out_success"] = evaluated(f"evaluate after {iteration + 1}").success
                if stored_metrics["held_out_success"] > best:
                    best = stored_metrics["held_out_success"]
                    save_folder(run, "best", policy, tokenizer)
                progress.phase(f"train {recipe.name}", options.iterations)
                progress.step(iteration)
            stored_metrics["best_success"] = best
            checkpoint = save_checkpoint(run, iteration + 1, models.state_dict())
            collect.end_iteration(batch, {**stored_metrics, "seconds": dict(seconds)}, checkpoint=checkpoint)
            drop_checkpoints(run, checkpoint)
        progress.step(**progress_numbers)
    from_first_rank(None)
    collect.close()  # drops prefetched iterations that are not needed
    after = evaluated("evaluate after")
    gain = bootstrap(after.successes - np.array(solved_before), "mean")
    save_folder(run, "last", policy, tokenizer)
    summary = {
        "seed": options.seed,
        "recipe": recipe.name,
        "engine": options.engine,
        "success_before": success_before,
        "success_after": after.success,
        "gain": list(gain),
        **_tool_use(after),
        **({"best_success": best} if options.evaluate_every else {}),
        "held_out_tasks": options.held_out,
        "iterations": options.iterations,
        "generated_tokens": generated,
        "seconds": {phase: round(value, 2) for phase, value in seconds.items()},
    }
    with new_file(run / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())
    return summary


def _update(
    options: TrainOptions, recipe: Recipe, models: Models, batch: Given, iteration: int
) -> tuple[Given, dict[str, Any]]:
    """Train on the batch of an iteration; every rank calls it, only the first one has the batch.

    Returns:
        The batch with the recipe's columns, and the metrics.
    """
    stepping: dict[str, Any] = {
        "rate": options.highest_rate * _schedule(options, iteration),
        "gradient_clip": options.gradient_clip,
        "max_tokens": options.pack_tokens,
    }
    batch = models.annotated(batch, options.pack_tokens)
    for stage in other_stages(recipe) if iteration == 0 else ():
        models.step(recipe.updates(batch, stage=stage, seed=options.seed), **stepping)
    if batch is not None:
        batch = cast("Given", recipe.credit(batch))
    updates = recipe.updates(batch, seed=options.seed + iteration, models=models.named)
    norms = models.step(updates, **stepping)
    recipe.run_hooks(updates, **models.named)
    if batch is not None and recipe.needs_losses:
        batch = cast("Given", updates.with_losses())
    return batch, {**updates.metrics, **norms}


def _follow(options: TrainOptions, recipe: Recipe) -> None:
    """Run the training loop of a rank other than the first: follow its iterations, and train a part of each batch."""
    checkpoint = from_first_rank(None)  # sent once the folder `start` is complete
    torch.manual_seed(options.seed)
    models = _models(options, recipe, _policy(options)[0], checkpoint)
    while (iteration := from_first_rank(None)) is not None:
        _update(options, recipe, models, None, iteration)


def _prepare_start(options: TrainOptions, run: Path, world: Environment, progress: TrainingProgress) -> None:
    """Write the model from which the run starts to the folder `start`, if missing: a local model or a small new one."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the run has its own progress bar
    policy: Any
    tokenizer: Any
    start = run / "start"
    if not start.is_dir():
        if options.model:
            policy = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, local_files_only=True)
            tokenizer = _tokenizer(options.model)
            if options.supervised_steps:
                progress.phase("warm start", options.supervised_steps)
                steps = {"seed": options.seed, "steps": options.supervised_steps}
                imitate(policy, tokenizer, world, **steps, progress=lambda _, loss: progress.step(loss=loss))
        else:
            if not isinstance(world, env.ReasoningGym):
                raise InvalidInputError(
                    f"model: env={options.env!r} has no demonstrations to warm up a small model with; give --model, "
                    "the directory of a saved model"
                )
            progress.phase("warm start", options.supervised_steps)
            policy, tokenizer = warm_start(
                world,
                seed=options.seed,
                steps=options.supervised_steps,
                progress=lambda _, loss: progress.step(loss=loss),
            )
        # Renamed when complete, so that an interrupted warm start is not used.
        half = new_folder(start)
        policy.save_pretrained(half)
        tokenizer.save_pretrained(half)
        rename_whole(half, start)


def _policy(options: TrainOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model from which the run starts, with a LoRA adapter if requested, and its tokenizer."""
    from transformers import AutoModelForCausalLM

    start = Path(options.run) / "start"
    policy: Any
    policy = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, local_files_only=True)
    tokenizer = _tokenizer(start)
    if options.lora:
        policy = _with_adapter(policy, options)
    if options.recompute:
        renamed = getattr(policy, "activation_checkpointing_enable", None)  # in transformers 5.24; the old name warns
        (renamed or policy.gradient_checkpointing_enable)({"use_reentrant": False})
    return policy.to(options.device), tokenizer


def _tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder."""
    from transformers import AutoTokenizer

    return cast("PreTrainedTokenizerBase", AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _models(options: TrainOptions, recipe: Recipe, policy: PreTrainedModel, checkpoint: str | None) -> Models:
    """Create the models of the recipe, and load a checkpoint into them if there is one."""
    models = Models(
        recipe,
        policy,
        _start(Path(options.run), policy),
        options.highest_rate,
        options.seed,
        autocast=options.precision == "bf16",
        recompute=options.recompute,
        teacher=_teacher(options, policy),
        replay_routes=options.replay_routes,
    )
    if checkpoint:
        models.load_state_dict(load_checkpoint(Path(options.run), checkpoint))
    return models


def _teacher(options: TrainOptions, policy: PreTrainedModel) -> PreTrainedModel | None:
    """Load the teacher in evaluation mode with frozen parameters; None if the options name no teacher."""
    from transformers import AutoModelForCausalLM

    if not options.teacher:
        return None
    teacher: Any = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=torch.float32, local_files_only=True)
    return cast("PreTrainedModel", teacher.to(policy.device).requires_grad_(requires_grad=False).eval())


def _start(run: Path, policy: PreTrainedModel) -> PreTrainedModel:
    """Load the policy from before reinforcement learning, on the device of the policy."""
    from transformers import AutoModelForCausalLM

    start: Any = AutoModelForCausalLM.from_pretrained(run / "start", dtype=torch.float32, local_files_only=True)
    start.to(policy.device)
    return cast("PreTrainedModel", start)


def _engine(options: TrainOptions, run: Path, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Engine:
    routes = options.replay_routes
    if routes and not routers_of(policy):
        raise InvalidInputError(
            f"replay_routes=True, but no expert router is known for {type(policy).__name__}; omit --replay-routes"
        )
    if options.engine == "vllm":
        extra_options: dict[str, Any] = {"enable_return_routed_experts": True} if routes else {}
        return engines.Vllm(str(run / "start"), tokenizer, max_model_len=options.context_tokens, **extra_options)
    # An engine that generates during training needs its own weights.
    return engines.Transformers(policy, tokenizer, copy=options.staleness > 0, routed_experts=routes)


def _with_adapter(policy: PreTrainedModel, options: TrainOptions) -> Any:
    """Return the policy with a LoRA adapter on all its linear layers."""
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


def _tool_use(evaluation: Evaluation) -> dict[str, float]:
    """Return the share of solved episodes that called a tool; empty if episodes do not count their calls."""
    if not evaluation.batch.has("tool_calls", "draw"):
        return {}
    calls = evaluation.batch.column("tool_calls", "draw")[evaluation.batch.column("success", "draw") == 1]
    return {"solved_with_tool": float(np.mean(calls > 0)) if len(calls) else 0.0}


def _shown(batch: Batch) -> dict[str, float]:
    """Return the numbers of the progress bar."""
    has_draws = batch.num_draws > 0
    entropy, success = batch.column("entropy", "node_token"), batch.column("success", "draw")
    return {
        "success": float(np.nanmean(success)) if np.isfinite(success).any() else math.nan,
        "reward": float(np.nanmean(batch.column("reward", "draw"))) if has_draws else math.nan,
        "entropy": float(np.nanmean(entropy)) if np.isfinite(entropy).any() else math.nan,
        "sampled_tokens": float(np.isfinite(batch.column("behaviour_logprob", "node_token")).sum()),
        "sharing": batch.sharing_ratio,
    }


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - begin
