"""Models of a recipe besides the policy, their columns, and checks of what `agentrl train` supports."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from agentrl_core.component.component import PHASES
from agentrl_core.component.requirements import required_facts
from agentrl_core.env.base import Environment, by_level
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Train
from agentrl_core.model.annotate import Given, annotate
from agentrl_core.model.ranks import group_of_ranks, num_ranks
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import SelfPlay
from agentrl_core.schedule import RepeatStage
from agentrl_core.schedule.hook import BEGIN
from agentrl_core.select import Pool, PredictedSuccess, SelectionRequest
from agentrl_core.train.torchrun import from_first_rank
from agentrl_core.update.minibatches import Updates

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_OF_POLICY = ("policy", "proximal")
"""Models that equal the policy before the updates, unless hooks of the recipe modify them."""
_FROZEN = ("reference", "reward_reference")
"""Models that stay equal to the policy before reinforcement learning."""
_TRAINED = ("critic", "reward_model")
"""Models that start as a copy of the policy."""
_TEACHER_COLUMN = "teacher_logprob"
"""Column of a teacher's log-probs of sampled tokens. A teacher is never trained."""
_LOOKED_AT = 64
"""Number of tasks on which a selector is tried."""


def check_runs(
    recipe: Recipe, world: Environment, group_size: int, *, adapter: bool = False, teacher: bool = False
) -> None:
    """Check that the reference loop can run a recipe with an environment, before anything is created.

    Args:
        recipe: the recipe.
        world: the environment.
        group_size: trajectories per task.
        adapter: whether the policy is a LoRA adapter.
        teacher: whether there is a teacher.

    Raises:
        InvalidInputError: the environment lacks facts, or the loop does not provide a model.
        RecipeError: the recipe itself cannot run.
    """
    name = f"recipe {recipe.name!r}"
    facts: Mapping[str, Any] = getattr(world, "facts", {})
    missing = [
        column.name
        for column in required_facts({phase: recipe.chain(phase) for phase in PHASES})
        if column.name not in facts
    ]
    if missing:
        raise InvalidInputError(
            f"{name} reads facts that these tasks do not have: {', '.join(missing)} (available: "
            f"{', '.join(facts) or 'none'}); set the recipe's column options to available facts, write your own loop "
            "with an environment that declares the missing ones, or choose another recipe: `agentrl recipes --facts` "
            "lists the facts of each"
        )
    recipe.check(facts=by_level({**facts, **recipe.rollout.facts}))
    if recipe.rollout.at(0).queried_models:
        raise InvalidInputError(
            f"{name} queries model {recipe.rollout.at(0).queried_models[0]!r} during collection, which agentrl train "
            f"does not provide; write your own loop, as in the README, and pass models= to the collector"
        )
    if isinstance(recipe.rollout.at(0), SelfPlay):
        raise InvalidInputError(
            f"{name} needs a multi-agent environment, but agentrl train runs one agent; write your own loop, as in the "
            "README, with an environment whose reset returns an env.MultiEpisode"
        )
    if getattr(recipe.rollout.at(0), "environment", ""):
        raise InvalidInputError(
            f"{name} starts branches in a second environment, which agentrl train does not have; write your own "
            "loop, as in the README, and pass both environments to the collector"
        )
    if adapter and _moved(recipe):
        raise InvalidInputError(
            f"lora: {name} copies weights between models ({', '.join(sorted(_moved(recipe)))}), but an adapter has "
            "other weights than these models; use --lora 0"
        )
    unknown = _moved(recipe) - {*_OF_POLICY, *_FROZEN, *_TRAINED}
    if unknown:
        raise InvalidInputError(
            f"{name} modifies model {min(unknown)!r}, but agentrl train has only the models policy, "
            f"{', '.join((*_FROZEN, *_TRAINED))}; "
            "write your own loop, as in the README, and pass that model to recipe.updates and recipe.run_hooks"
        )
    for training in _trainings(recipe):
        if "value_logits" in training.loss.outputs or getattr(training.loss, "heads", "each") != "each":
            raise InvalidInputError(
                f"{name} trains model {training.model!r} with several values, but agentrl train adds one value head; "
                "write your own loop, as in the README, and set value_head of the model"
            )
        if training.model not in ("policy", *_TRAINED):
            raise InvalidInputError(
                f"{name} trains model {training.model!r}, but agentrl train trains only policy, {', '.join(_TRAINED)}; "
                "write your own loop, as in the README, and step the model that update.model names"
            )
        credit_columns = {"advantage", "return"} & {column.name for column in training.needs}
        if credit_columns and training.stage in other_stages(recipe):
            raise InvalidInputError(
                f"{name} trains model {training.model!r} in stage {training.stage!r} with column "
                f"{min(credit_columns)!r}, which agentrl train does not compute for that stage; write your own loop, "
                "as in the README, and pass the stage a batch with this column"
            )
        if training.model == "policy" and "value" in training.loss.outputs:
            raise InvalidInputError(
                f"{name} needs a value head on the policy, which agentrl train does not add; write your own "
                "loop, as in the README, and set policy.value_head"
            )
        if "pair" in training.loss.streams and (final := recipe.rollout.at(0).final_group_size(group_size)) != 2:
            follows = recipe.rollout.at(0).final_group_size(2) == 2
            raise InvalidInputError(
                f"--group-size is {group_size}, which makes {final} rollouts of a task, but {name} compares exactly "
                f"two; give --group-size 2{'' if follows else ', and rollout.Independent() as rollout of the recipe'}"
            )
    if _learns_from_teacher(recipe) and not teacher:
        raise InvalidInputError(f"{name} learns from a teacher; give --teacher, the directory of a model")
    if teacher and not _learns_from_teacher(recipe):
        raise InvalidInputError(f"teacher: {name} does not learn from one; leave --teacher out")
    for column in recipe.model_columns:
        known = column.model in (*_OF_POLICY, *_FROZEN, *_TRAINED) or column.name == _TEACHER_COLUMN
        is_supported = (column.level, column.name) in (("step", "value"), ("draw", "gradient_norm"))
        if not known or (column.level != "token" and not is_supported):
            raise InvalidInputError(
                f"{name} needs column {column.name!r} of each {column.level} from model {column.model!r}, which "
                f"agentrl train does not compute; write your own loop, as in the README, and add the column "
                "with arl.annotate or batch.with_columns"
            )
    pool = Pool([("world", task) for task in world.tasks(_LOOKED_AT)])
    select = recipe.at(0).select
    for part in vars(select).values():
        if isinstance(part, PredictedSuccess):  # reads its column only after the survey
            pool.column(part.by)
    request = SelectionRequest(1, max(group_size, 1), 0, np.zeros(0, np.int64), iteration=0)
    if not len(select.choose(pool, select.initial_state(), request, 0).rows):
        raise InvalidInputError(
            f"{name} selects none of these tasks (domains: {', '.join(pool.domains)}); write the recipe to a file and "
            f"set these domains in its phase select"
        )


def other_stages(recipe: Recipe) -> list[str]:
    """Return the stages that run once, on the first batch, before its advantages are computed."""
    repeated = {action.stage for action in recipe.at(0).chain("hooks") if isinstance(action, RepeatStage)}
    return [
        stage
        for stage in dict.fromkeys(each.stage for each in _trainings(recipe))
        if stage not in repeated | {"update"}
    ]


def _moved(recipe: Recipe) -> set[str]:
    """Return the names of the models that hooks read or modify."""
    actions = recipe.at(0).chain("hooks")
    return {getattr(action, at, "") for action in actions for at in ("source", "target", "one", "other")} - {"", BEGIN}


def _learns_from_teacher(recipe: Recipe) -> bool:
    """Return whether a column or a loss of the recipe needs the teacher that the options name."""
    requested = {column.name for column in recipe.model_columns} | {
        output.partition(":")[0] for training in _trainings(recipe) for output in training.loss.outputs
    }
    return bool(requested & {_TEACHER_COLUMN, "divergence"})


def _trainings(recipe: Recipe) -> list[Train]:
    links: tuple[Any, ...] = recipe.chain("loss")
    return [link if isinstance(link, Train) else Train(link) for link in links]


@dataclass
class Models:
    """The models of a run by name, and an optimizer for each that is trained.

    Args:
        recipe: the recipe.
        policy: the model that generates.
        start: the policy before reinforcement learning.
        learning_rate: highest learning rate, with which optimizers are created.
        seed: seed of new heads.
        autocast: whether forward passes run in bf16.
        recompute: whether models are in training mode during updates, so that they recompute layers in the backward
            pass (after `gradient_checkpointing_enable`).
        teacher: the model from which a distillation learns; None if the recipe has none.
        replay_routes: whether the policy routes tokens to the experts that the engine recorded.
    """

    recipe: Recipe
    policy: PreTrainedModel
    start: PreTrainedModel
    learning_rate: float
    seed: int
    _: KW_ONLY
    autocast: bool = False
    recompute: bool = False
    teacher: PreTrainedModel | None = None
    replay_routes: bool = False
    named: dict[str, Any] = field(default_factory=dict)
    wrapped: dict[str, torch.nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named = {"policy": self.policy}
        trained = {training.model for training in _trainings(self.recipe)}
        moved = _moved(self.recipe)
        for name in dict.fromkeys([*self.recipe.models, *sorted(trained | moved)]):
            if name in _FROZEN or (name == "proximal" and name in moved):
                self.named[name] = copy.deepcopy(self.start).requires_grad_(requires_grad=False)
            elif name in _TRAINED:
                model: Any = copy.deepcopy(self.start)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    model.value_head = torch.nn.Linear(model.config.hidden_size, 1).to(self.policy.device)
                self.named[name] = model
        for name in sorted(trained | {"policy"}):
            if num_ranks() > 1:
                self.wrapped[name] = DistributedDataParallel(self.named[name], gradient_as_bucket_view=True)
            weights = [each for each in self.named[name].parameters() if each.requires_grad]
            self.optimizers[name] = torch.optim.AdamW(weights, lr=self.learning_rate, weight_decay=0.0)

    def annotated(self, batch: Given, max_tokens: int) -> Given:
        """Add the columns that models compute; the ranks share the work, and only the first one has the batch."""
        columns = self.recipe.model_columns
        known = None if batch is None else [batch.has(column.name, column.level) for column in columns]
        for column, is_known in zip(columns, from_first_rank(known) or (), strict=True):
            if not is_known:
                model_name = str(column.model)
                model = self.teacher if column.name == _TEACHER_COLUMN else None
                model = (
                    model
                    or self.named[model_name if model_name in self.named or model_name not in _OF_POLICY else "policy"]
                )
                level: Any = "node_token" if column.level == "token" else column.level
                # Only the policy replays experts, since the engine recorded those of the policy.
                replay = (
                    self.replay_routes and model_name in _OF_POLICY and model is not self.teacher and level != "draw"
                )
                options: Any = {"max_tokens": max_tokens, "group": group_of_ranks(), "replay_routes": replay}
                with self._precision():
                    batch = annotate(batch, column.name, model, level=level, **options)
        return batch

    def step(self, updates: Updates, *, rate: float, gradient_clip: float, max_tokens: int) -> dict[str, float]:
        """Run all optimizer steps of some updates; return `gradient_norm`, the policy's mean norm before clipping."""
        norms = []
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate
        for update in updates:
            model = self.wrapped.get(update.model, self.named[update.model])
            model.train(self.recompute)
            replay = self.replay_routes and update.model == "policy"
            for pack in update.pack(max_tokens=max_tokens, model=model, replay_routes=replay):
                with self._precision():
                    update.loss(pack.run(model, teacher=self.teacher), pack).backward()
            model.eval()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clip)
            if update.model == "policy":
                norms.append(float(norm))
            update.step(self.optimizers[update.model])
        return {"gradient_norm": float(np.mean(norms))} if norms else {}

    def _precision(self) -> AbstractContextManager[object]:
        """Return the autocast context of forward passes."""
        return torch.autocast(self.policy.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of trained or modified models and the optimizers; all other models equal the start."""
        changed = self.optimizers.keys() | _moved(self.recipe)
        return {
            "models": {name: model.state_dict() for name, model in self.named.items() if name in changed},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore models and optimizers from the output of `state_dict`."""
        for name, weights in state["models"].items():
            self.named[name].load_state_dict(weights)
        for name, saved in state["optimizers"].items():
            self.optimizers[name].load_state_dict(saved)
