"""Run several iterations of any recipe through the public path, with real models, a kill and a resume.

`python recipe_loop.py FOLDER NAME...` kills a run of each recipe in the middle of an iteration, resumes it, kills it
between a batch and its update, and resumes it to the end. It prints `NAME MOMENT CODE` for each process.
"""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from any_world import AGENTS, AnyWorld, Speaker
from hand_made import tiny_model
from riddles import TOKENIZER, Stopping
from sampled import RecordingEngine
from torch import nn

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.component import Column
from agentrl_core.component.component import PHASES
from agentrl_core.model.token_probe import Probe
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.brorl import Pieces
from agentrl_core.recipes.icpi import Imagine
from agentrl_core.recipes.otr import OneToken
from agentrl_core.rollout import WorldModelEnvironment
from agentrl_core.schedule import Above, FreezeModel, RepeatStage, SkipStep
from agentrl_core.select import ComposedSelector, Curriculum

NOT_RUNNING = Path(__file__).parents[1] / "recipes" / "not_running.toml"
ITERATIONS = 3
WIDTH = 16
TOKENS = 1 << 20
"""Maximum tokens of a pack: large enough for all."""
GROUP_SIZES = {"rac": 20, "rstar2": 20}
"""Recipes that keep so few draws of each group that a small group would train nothing."""
SMALLER: dict[str, dict[str, Any]] = {
    "ac_flow": {"hooks": FreezeModel("policy", until=2)},
    "ace_reason": {
        "select": ComposedSelector(stage=Curriculum("domain", ("even", "odd"), above=None, iterations=2, earlier=0.0))
    },
    "props": {"epochs": 1, "minibatches": 4},
    # Texts of a script are unlikely under the models.
    "marft": {"hooks": SkipStep(when=Above("approximate_kl", 1e6))},
    "bu_po": {"hooks": (FreezeModel("policy", until=2), FreezeModel("internal", since=2))},
    "brorl": {"rollout": Pieces(count=8, piece=4)},
    "icpi": {"rollout": Imagine(successes=2, examples=1)},
    "otr": {"rollout": OneToken(candidates=16)},
    "ss_orl": {"hooks": (FreezeModel("policy", until=2), FreezeModel("inverse", since=2))},
    "vla_rl": {"hooks": FreezeModel("policy", until=2)},
}
"""Options of recipes that would run too long, or that name the domains of other tasks.

Too long: hundreds of rollouts per task, hundreds of optimizer steps per batch, or long waits.
"""
HEADS = {"hyper_pp": 8, "safe": 2}
"""Recipes whose critic returns several numbers."""


@functools.cache
def model(seed: int) -> nn.Module:
    """Return a model of one layer with a value head, one for each seed."""
    network = tiny_model(
        "llama",
        torch.float32,
        seed=seed,
        vocab_size=len(TOKENIZER),
        max_position_embeddings=4096,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    network.value_head = nn.Linear(WIDTH, 1)
    return network.eval()


def small(name: str) -> Recipe:
    """Return a recipe with the options of these tests."""
    return recipes.get(name).replace(**SMALLER.get(name, {}))


def reasons() -> dict[str, str]:
    """Reasons why a recipe does not run, by its name."""
    return tomllib.loads(NOT_RUNNING.read_text(encoding="utf-8"))


def names(recipe: Recipe) -> list[str]:
    """Return the models of a recipe: those that it trains, samples or moves; the policy first."""
    trained = [training.model for training in recipe._trainings]
    moved = [
        value
        for action in recipe.at(0).chain("hooks")
        for name, value in vars(action).items()
        if name in ("source", "target", "one", "other", "model") and value != "begin"
    ]
    return list(dict.fromkeys(["policy", *trained, *recipe.models, *moved]))


@dataclass
class Loop:
    """A run of a recipe that can be stopped and resumed.

    Attributes:
        losses: by iteration and optimizer step.
        norms: the largest norm of a gradient of each model that is stepped.
        batches: the trained batches, with their credit.
        changed: the models that the recipe's actions moved.
        cut: when a batch is cut.
        heard: the segments that were sampled while nothing was stopped.
    """

    recipe: Recipe
    layout: Literal["tree", "sequence", "padded"]
    models: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norms: dict[str, float] = field(default_factory=dict)
    batches: list[arl.Batch] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    cut: BatchPolicy = BatchPolicy()  # noqa: RUF009 - frozen
    recorder: RecordingEngine = field(default_factory=lambda: RecordingEngine(None))

    def __post_init__(self) -> None:
        self.models = {name: copy.deepcopy(model(place)) for place, name in enumerate(names(self.recipe))}
        if heads := HEADS.get(self.recipe.name):
            torch.manual_seed(5)
            self.models["critic"].value_head = nn.Linear(WIDTH, heads)
        self.optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.05) for name, each in self.models.items()}
        self.world: Any = AnyWorld(self.recipe)
        if "imagined" in vars(self.recipe.rollout).values():
            self.world = {"real": self.world, "imagined": WorldModelEnvironment(self.world, Speaker())}

    def speaker(self) -> Any:
        """Return the engine of a collector."""
        return Speaker()

    def collector(
        self, store: arl.Store, *, stops: int | None = None, stopping: type[Stopping] = Stopping
    ) -> arl.Collector:
        """Return a collector on the store; its engine fails after `stops` segments."""
        speaker = self.speaker()
        speaker.update_weights(self.models["policy"], version=store.iteration)
        speaker = self.recorder.beside(speaker) if stops is None else stopping(speaker, stops, set())
        return arl.Collector(
            dict.fromkeys(AGENTS if _speaks_to_others(self.recipe) else ("policy",), speaker),
            self.world,
            self.recipe,
            store=store,
            seed=3,
            task_pool=16,
            turn_limit=5,
            batch_policy=self.cut,
        )

    def collect(self, store: arl.Store, **stops: Any) -> tuple[arl.Collector, arl.Batch]:
        """Return the batch of the open iteration."""
        collect = self.collector(store, **stops)
        return collect, collect(tasks=2, group_size=self.group_size)

    @property
    def group_size(self) -> int:
        """The number of rollouts per group; pairs are groups of two."""
        streams = {name for training in self.recipe._trainings for name in training.loss.streams}
        return 2 if "pair" in streams else GROUP_SIZES.get(self.recipe.name, 4)

    def train(self, collect: arl.Collector, batch: arl.Batch, *, folder: Path | None = None) -> None:
        """Annotate, compute credit, take the optimizer steps, run their hooks, and close the iteration.

        With a folder the weights are saved there.
        """
        batch = self.annotated(batch)
        first = collect.iteration == 0
        stages = dict.fromkeys(training.stage for training in self.recipe._trainings)
        behind = {action.stage for action in self.recipe.at(0).chain("hooks") if isinstance(action, RepeatStage)}
        for stage in stages if first else ():
            if stage != "update" and stage not in behind:
                self.step(self.recipe.updates(self.prepared(batch, stage), stage=stage))
        batch = self.recipe.credit(batch)
        updates = self.recipe.updates(batch, seed=collect.iteration, models=self.models)
        self.step(updates)
        changed = self.recipe.run_hooks(updates, **self.models).changed
        self.changed |= set(changed) - set(self.recipe.frozen)  # restored ones are unchanged
        if self.recipe.needs_losses:
            batch = updates.with_losses()
        self.batches.append(batch)
        checkpoint = f"{collect.iteration}.pt"
        if folder is not None:
            torch.save({name: each.state_dict() for name, each in self.models.items()}, folder / checkpoint)
        collect.end_iteration(batch, updates.metrics, checkpoint=checkpoint)

    def prepared(self, batch: arl.Batch, stage: str) -> arl.Batch:
        """Return the batch in the form of a stage with data of its own: with targets and preferences."""
        stage_columns = {
            "return": np.linspace(0.0, 1.0, batch.num_draws),
            "advantage": np.resize([1.0, -1.0], batch.num_draws),
        }
        needed = {column.name for training in self.recipe.losses(stage) for column in training.needs}
        columns = {
            name: values for name, values in stage_columns.items() if name in needed and not batch.has(name, "token")
        }
        return batch.with_columns("draw", **columns) if columns else batch

    def reader(self, name: str) -> nn.Module:
        """Return the model that makes a column of one number; if the critic has several, another model."""
        several = name == "critic" and self.recipe.name in HEADS
        return model(len(self.models)) if several else self.models[name]

    def step(self, updates: Any) -> None:
        for update in updates:
            trained = self.models[update.model]
            total = 0.0
            for pack in update.pack(max_tokens=TOKENS, layout=self.layout, model=trained):
                distils = any(output.startswith("divergence:") for output in pack.outputs)
                loss = update.loss(pack.run(trained, teacher=model(99) if distils else None), pack)
                if loss.requires_grad:
                    loss.backward()
                total += float(loss.detach())
            norm = float(torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0))
            self.norms[update.model] = max(norm, self.norms.get(update.model, 0.0))
            update.step(self.optimizers[update.model])
            self.losses.append(total)

    def annotated(self, batch: arl.Batch) -> arl.Batch:
        """Return the batch with the columns that only models can make, and with the recipe's token annotations."""
        for column in _requested_columns(self.recipe):
            if batch.has(column.name, column.level):
                continue
            if column.name == "gradient_norm":
                batch = arl.annotate(batch, column.name, self.reader(column.model), level="draw", max_tokens=TOKENS)
                continue
            name = column.name
            if name.endswith("top_ids"):  # stored with the log-probs
                name = f"{name.removesuffix('top_ids')}logprob"
            rows = batch.num_draws if column.level == "draw" else int(batch.offsets("step")[-1])
            if column.level == "draw" or (column.level == "step" and not _is_answer(column.name)):
                if not column.name.endswith(
                    "_before"
                ):  # a number that another component computes for each trajectory or step
                    batch = batch.with_columns(column.level, **{column.name: np.linspace(0.1, 0.9, rows)})
            elif column.level == "step":
                probe = Probe(np.full((batch.num_draws, 3), 5), start=1)
                batch = arl.annotate(batch, column.name, self.reader(column.model), probe=probe, max_tokens=TOKENS)
            elif column.model in self.models and _is_answer(name):
                requested = {each.name for each in self.recipe.model_columns}
                top_k = 8 if f"{name.removesuffix('logprob')}top_ids" in requested else None
                batch = arl.annotate(batch, name, self.reader(column.model), max_tokens=TOKENS, top_k=top_k)
            else:
                batch = arl.annotate(batch, column.name, lambda pack: (pack.target % 3).float(), max_tokens=TOKENS)
        return batch


def _requested_columns(recipe: Recipe) -> Iterator[Column]:
    yield from recipe.model_columns
    produced = {"score", "advantage", "return", "weight", "keep"}
    for phase in PHASES:
        for link in recipe.chain(phase):
            for column in link.needs:
                if column.level == "token" and not (column.model or column.is_fact or column.name in produced):
                    yield column
            produced |= {column.name for column in link.makes}


def _is_answer(name: str) -> bool:
    return name.endswith(("logprob", "entropy", "value"))


def _speaks_to_others(recipe: Recipe) -> bool:
    """Return whether agents other than the policy generate."""
    return any(value in AGENTS or (name == "agents" and value) for name, value in vars(recipe.rollout).items())


class Deadly(Stopping):
    """An engine that kills its process after a number of segments."""

    async def generate(self, request: Any) -> Any:
        try:
            return await super().generate(request)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGKILL)


def go_on(name: str, folder: Path, *, dies: int) -> None:
    """Resume a run to its end, with checkpoints; or be killed.

    Args:
        name: of the recipe.
        folder: of the run.
        dies: 1: in the middle of collecting iteration 1; 2: between the batch of iteration 2 and its close; 0: never.
    """
    loop = Loop(small(name), "sequence")
    with arl.Store.open(folder / "run", sync="never") as store:
        if store.iteration:
            saved = torch.load(folder / str(store.state["checkpoint"]), weights_only=True)
            for model_name, weights in saved.items():
                loop.models[model_name].load_state_dict(weights)
        while store.iteration < ITERATIONS:
            kills = dies == 1 and store.iteration == 1
            collect, batch = loop.collect(store, stops=3 if kills else None, stopping=Deadly)
            if dies == 2 and store.iteration == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loop.train(collect, batch, folder=folder)
    torch.save({key: each.state_dict() for key, each in loop.models.items()}, folder / "end.pt")


if __name__ == "__main__":
    model(0)  # modules imported here are shared by all children
    for recipe_name in sys.argv[2:]:
        for moment in (1, 2, 0):
            child = os.fork()
            if not child:
                place = Path(sys.argv[1]) / recipe_name
                place.mkdir(exist_ok=True)
                go_on(recipe_name, place, dies=moment)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.stdout.write(f"{recipe_name} {moment} {code}\n")
            sys.stdout.flush()
