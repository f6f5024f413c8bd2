"""`agentrl train`: the loop of the README, extended to run every recipe. Read it and copy it.

It builds and warms up a small model (or loads a local one), evaluates it on held-out tasks, trains it with a recipe,
and evaluates it again. The run directory is a `Store` with all training data. It also has `recipe.toml` (recipe and
options), the checkpoints, `summary.json` and `learning_curve.png`.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields
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
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe
from agentrl_core.train.models import Models, check_runs, other_stages
from agentrl_core.train.warm_start import WARM_START, warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentrl_core.engine.base import Engine


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a run; each is a flag of `agentrl train` and a key of the table `[train]` in a recipe file."""

    run: str = _option("runs/demo", "directory of the run")
    seed: int = _option(0, "seed of everything")
    engine: str = _option("transformers", "what generates: transformers or vllm")
    model: str = _option("", "directory of a local Hugging Face model; empty: a small one is built and warmed up")
    device: str = _option("cpu", "where the policy is trained: cpu or cuda")
    families: tuple[str, ...] = _option(("chain_sum", "products", "lcm"), "families of reasoning-gym tasks")
    instructions: str = _option(
        "auto", "whether a system message describes how to call and answer: on, off, or auto (for pretrained models)"
    )
    iterations: int = _option(40, "iterations of reinforcement learning")
    rollouts: int = _option(256, "trajectories per iteration")
    staleness: int = _option(0, "how many iterations are rolled out ahead, while the policy is trained")
    group_size: int = _option(8, "trajectories per task, unless the recipe's rollout has a budget of its own")
    learning_rate: float = _option(5e-4, "highest learning rate; it warms up over 4 iterations and decays to a tenth")
    gradient_clip: float = _option(0.5, "largest norm of the gradient")
    turn_tokens: int = _option(32, "most tokens of one turn")
    context_tokens: int = _option(256, "most tokens of a trajectory")
    task_pool: int = _option(16_384, "training tasks to choose from; the warm start has seen the first 4096")
    pack_tokens: int = _option(16_384, "most tokens of one forward and backward pass")
    warm_start_steps: int = _option(480, "supervised steps before reinforcement learning")
    held_out: int = _option(384, "held-out tasks that success is measured on")
    resume: bool = _option(default=False, text="go on with the run in the directory")

    def __post_init__(self) -> None:
        for option in fields(self):
            _check_type(option.name, getattr(self, option.name), option.default)
        if self.engine not in ("transformers", "vllm"):
            raise InvalidInputError(f"engine={self.engine!r}; use transformers or vllm")
        if self.instructions not in ("auto", "on", "off"):
            raise InvalidInputError(f"instructions={self.instructions!r}; use auto, on or off")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise InvalidInputError(f"device={self.device!r}, but torch sees no GPU here; use cpu")
        if self.model and not (Path(self.model) / "config.json").is_file():
            raise InvalidInputError(f"model={self.model!r} has no config.json; give the directory of a saved model")
        for name in (
            "iterations",
            "rollouts",
            "group_size",
            "turn_tokens",
            "context_tokens",
            "task_pool",
            "pack_tokens",
            "held_out",
        ):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name}={getattr(self, name)} must be at least 1")
        if self.staleness < 0:
            raise InvalidInputError(f"staleness={self.staleness} must be at least 0")
        if self.learning_rate < 0 or self.gradient_clip <= 0:
            raise InvalidInputError(
                f"learning_rate={self.learning_rate} must be at least 0 and gradient_clip={self.gradient_clip} above 0"
            )


_KEPT = {option.name for option in fields(TrainOptions)} - {"run", "resume", "iterations", "device"}
"""Options that stay fixed when a run resumes."""


def _check_type(name: str, value: object, default: object) -> None:
    """Options of a file can have any type."""
    if isinstance(default, tuple):
        fits = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    elif isinstance(default, float):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = type(value) is type(default)
    if not fits:
        wanted = "a list of strings" if isinstance(default, tuple) else f"a value like {default!r}"
        raise InvalidInputError(f"{name}={value!r} is not possible; give {wanted}")


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
    world = env.ReasoningGym(
        list(options.families), seed=options.seed, held_out=options.held_out, instructions=_is_instructed(options)
    )
    check_runs(recipe, world, options.group_size)
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
            return _learn(options, recipe, progress, store, world, policy, generate, seconds)
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
    if not options.keys() >= _KEPT:
        raise InvalidInputError(
            f"{about} is incomplete: {why}; the run was killed while it started, or the file was edited. If nothing "
            f"was trained yet, remove the file to start again; otherwise restore it"
        )
    return Recipe.from_dict(table), options


def _is_instructed(options: TrainOptions) -> bool:
    """Return whether prompts explain the format; a warm-started model has learnt it."""
    if options.instructions != "auto":
        return options.instructions == "on"
    if not options.model:
        return False
    config = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))
    return not config.get(WARM_START)


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
    return {name: value for name, value in values.items() if name in _KEPT}


def _options_toml(options: TrainOptions) -> str:
    lines = (f"{name} = {json.dumps(value)}" for name, value in _kept_options(options).items())
    return "\n".join(["", "[train]", *lines, ""])


def _learn(
    options: TrainOptions,
    recipe: Recipe,
    progress: TrainingProgress,
    store: Store,
    world: env.ReasoningGym,
    policy: PreTrainedModel,
    generate: Engine,
    seconds: dict[str, float],
) -> dict[str, Any]:
    models = Models(recipe, policy, _start(Path(options.run), policy), options.learning_rate, options.seed)
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
    with closing(collect):  # prefetching ends with the loop, even after an error
        return _loop(options, recipe, progress, store, collect, policy, generate, models, seconds)


def _loop(
    options: TrainOptions,
    recipe: Recipe,
    progress: TrainingProgress,
    store: Store,
    collect: Collector,
    policy: PreTrainedModel,
    generate: Engine,
    models: Models,
    seconds: dict[str, float],
) -> dict[str, Any]:
    run = Path(options.run)
    measured = store.state.get("metrics", {})
    if store.iteration:
        models.load_state_dict(_checkpoint(run, store))
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
    progress.phase(f"train {recipe.name}", options.iterations)
    progress.step(min(collect.iteration, options.iterations))
    for iteration in range(collect.iteration, options.iterations):
        with _timed(seconds, "collect"):
            group = recipe.rollout.at(iteration).final_group_size(options.group_size)
            batch = collect(tasks=max(options.rollouts // group, 1), group_size=options.group_size)
        with _timed(seconds, "update"):
            stepping: dict[str, Any] = {
                "rate": options.learning_rate * _schedule(iteration, options.iterations),
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
            checkpoint = _save_checkpoint(run, iteration + 1, models.state_dict())
            collect.end_iteration(batch, {**kept, "seconds": dict(seconds)}, checkpoint=checkpoint)
            _drop_checkpoints(run, checkpoint)
        progress.step(**shown)
    collect.close()  # drops prefetched iterations that are not needed
    success_after = success("evaluate after")
    summary = {
        "seed": options.seed,
        "recipe": recipe.name,
        "engine": options.engine,
        "success_before": success_before,
        "success_after": success_after,
        "held_out_tasks": options.held_out,
        "iterations": options.iterations,
        "generated_tokens": generated,
        "seconds": {phase: round(value, 2) for phase, value in seconds.items()},
    }
    with new_file(run / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())
    return summary


def _policy(
    options: TrainOptions, run: Path, world: env.ReasoningGym, store: Store, progress: TrainingProgress
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


def _schedule(iteration: int, iterations: int) -> float:
    """Return the learning-rate factor: linear warm-up over 4 iterations, then a half cosine from 1 to 0.1."""
    if iteration < 4:
        return (iteration + 1) / 4
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (iteration - 3) / max(iterations - 3, 1)))


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
