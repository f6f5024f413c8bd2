"""Cases: a recipe's numbers as data, from rollouts to advantages, weights, loss and gradient.

A case is a TOML file in `tests/recipes/cases`; the README of the folder describes the format. This module computes
nothing beyond the arithmetic that a case contains.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from arithmetic import number
from case_collector import running
from numpy.typing import NDArray

from agentrl_core import Batch, Forest, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.component.component import Component, find_component
from agentrl_core.component.state import pack_state
from agentrl_core.env import StepFlag
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipe import Recipe
from agentrl_core.schedule.hook import BEGIN

FOLDER = Path(__file__).parents[1] / "recipes" / "cases"
LEVELS = ("draw", "step", "token")
STARTED = ("agent", "role", "origin")
"""Fields of a trajectory that are set when it begins."""
Numbers = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Case:
    """A case, read from a file."""

    name: str
    recipe: Recipe
    iterations: list[dict[str, Any]]
    idle: dict[str, str]
    """Options that make no difference, with the reason."""
    pool: dict[str, Any]
    """The tasks of a case that a collector runs; see case_collector."""

    @classmethod
    def read(cls, path: Path) -> Case:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        unknown = table.keys() - {"recipe", "checks", "from", "why", "replace", "idle", "iteration", "pool"}
        assert not unknown, f"{path.name} has {unknown}"
        for name in ("checks", "from", "why"):
            assert table[name].strip(), f"{path.name} does not say {name}"
        recipe = recipes.get(table["recipe"])
        for place, value in table.get("replace", {}).items():
            recipe = replaced(recipe, place.split("."), value)
        return cls(path.stem, recipe, table["iteration"], table.get("idle", {}), table.get("pool", {}))

    @property
    def expected(self) -> list[Numbers]:
        """Return the expected numbers of each iteration, by name."""
        return [dict(_flat(iteration["expect"])) for iteration in self.iterations]


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            values = value if isinstance(value, list) else [value]
            yield before + name, np.array([number(each) for each in values])


def rollouts(members: Sequence[Mapping[str, Any]], iteration: int) -> Batch:
    """Return the members of an iteration as a batch, in the order of the case."""
    facts: dict[str, dict[str, str]] = {"step": {}, "trajectory": {}}
    components: list[str] = []
    for member in members:
        for level, table in (("trajectory", member), *(("step", step) for step in member.get("steps", ()))):
            for name, value in table.get("facts", {}).items():
                facts[level][name] = "key" if isinstance(value, str) else "number"
            components += [name for name in table.get("rewards", {}) if name not in components]
    forest = Forest(iteration=iteration, facts=facts, reward_components=components or None)
    groups = list(dict.fromkeys(member.get("group", "task") for member in members))
    for place, group in enumerate(groups):
        forest.add_group(place, group)
    counts, handles, nodes = dict.fromkeys(groups, 0), [], []
    for member in members:
        group = member.get("group", "task")
        if "fork" in member:
            handle = forest.fork(handles[member["fork"]], node=nodes[member["fork"]][member["nodes"] - 1])
        else:
            handle = forest.start(
                groups.index(group),
                counts[group],
                episode=handles[member["episode"]] if "episode" in member else None,
                **{name: member[name] for name in STARTED if name in member},
            )
            counts[group] += 1
        handles.append(handle)
        nodes.append(_tell(forest, handle, member, components))
    batch = forest.freeze()
    action_lengths = [
        [len(tokens) * (kind == "action") for kind, tokens in _runs(member["path"])] for member in members
    ]
    inherited: list[int] = []
    for member in members:
        forked = member.get("fork")
        inherited.append(0 if forked is None else inherited[forked] + sum(action_lengths[forked][: member["nodes"]]))
    total_lengths = [sum(lengths) + before for lengths, before in zip(action_lengths, inherited, strict=True)]
    draw_lengths = [
        length for length, member in zip(total_lengths, members, strict=True) if member.get("role") != "helper"
    ]
    batch = _drawn_again(batch, [member for member in members if member.get("role") != "helper"])
    lengths = np.diff(batch.offsets("token")[batch.offsets("step")]).tolist()
    assert lengths == draw_lengths, (
        f"draws of {lengths} tokens, where the case has {draw_lengths}: list forks behind their members"
    )
    return batch


def _drawn_again(batch: Batch, members: Sequence[Mapping[str, Any]]) -> Batch:
    """Return the batch with stored draws in place of fresh ones, from the sources that members name."""
    places = np.arange(len(members))
    for place, member in enumerate(members):
        if "source" in member:
            places[place] = batch.num_draws
            trajectory = batch.column("trajectory_id", "draw")[[place]]
            batch = batch.with_draws(
                trajectory, source=member["source"], old_logprob=member.get("old_logprob", "behaviour")
            )
    return batch.select_draws(places) if batch.num_draws > len(members) else batch


def _runs(path: str) -> list[tuple[str, list[int]]]:
    """The nodes of a path, `prompt | action ~ observation | action`: the tokens between two signs; `5*3` is `5 5 5`."""
    runs: list[tuple[str, list[int]]] = [("prompt", [])]
    for word in path.split():
        if word in "|~":
            runs.append(("action" if word == "|" else "observation", []))
        else:
            token, _, times = word.partition("*")
            runs[-1][1].extend([int(token)] * int(times or 1))
    return [run for run in runs if run[1]]


_WORDS = 1_000
"""A token id larger than those that cases name, and than the number of members."""


def _tell(forest: Forest, handle: int, member: Mapping[str, Any], components: Sequence[str]) -> list[int]:
    """Append the observations and actions of a member; return its nodes."""

    def paid(table: Mapping[str, Any]) -> dict[str, Any]:
        options = {name: table[name] for name in ("reward", "facts") if name in table}
        if "rewards" in table:
            options["rewards"] = [number(table["rewards"].get(name, "nan")) for name in components]
        return options

    steps, step_index = member.get("steps", []), 0
    columns = {name: iter(member[name]) for name in ("logprobs", "entropies", "trainable") if name in member}
    nodes = []
    for kind, tokens in _runs(member["path"]):
        if kind == "prompt":  # distinct per member, so that equal words have different model outputs
            tokens[0] += _WORDS * (handle % _WORDS)
        step = steps[step_index] if step_index < len(steps) else {}
        if kind != "action":
            nodes.append(forest.append(handle, tokens, kind=kind, state=step.get("state")))
            continue
        node_columns = {name: list(itertools.islice(values, len(tokens))) for name, values in columns.items()}
        node_columns = {name: [number(value) for value in values] for name, values in node_columns.items()}
        if "trainable" in node_columns:
            node_columns["trainable"] = [int(value) for value in node_columns["trainable"]]
        sampling = {name: member[name] for name in ("temperature", "policy", "policy_version") if name in member}
        sampling = {name: each[step_index] if isinstance(each, list) else each for name, each in sampling.items()}
        unsampled = member.get("unsampled", False)
        if unsampled is False or (unsampled is not True and step_index not in unsampled):
            node_columns = {"logprobs": [-1.0] * len(tokens), "policy_version": 0, **node_columns, **sampling}
        nodes.append(forest.append(handle, tokens, kind="action", **node_columns))
        flags = sum(int(StepFlag[name.upper()]) for name in step.get("flags", ()))
        forest.step(handle, flags=flags, truncated=step.get("truncated", False), **paid(step))
        step_index += 1
    remaining = {name: len(list(values)) for name, values in columns.items()}
    assert not any(remaining.values()), f"{member['path']!r} has more numbers than tokens: {remaining}"
    forest.finish(handle, success=member.get("success"), status=member.get("status", "finished"), **paid(member))
    return nodes


def run(case: Case, recipe: Recipe, layout: Literal["tree", "sequence"], seed: int) -> list[Numbers]:
    """Return the numbers that the recipe computes for each iteration, by name; each seed shuffles the draws."""
    if case.pool:
        return _collected(case, recipe, layout, seed)
    results, state = [], {}
    for place, iteration in enumerate(case.iterations):
        batch = rollouts(iteration["members"], iteration.get("number", place)).with_state(pack_state(state))
        for level, columns in iteration.get("columns", {}).items():
            numbers = {name: np.array([number(value) for value in values]) for name, values in columns.items()}
            batch = batch.with_columns(level, **numbers)
        batch = _numbered(batch, seed)
        if iteration.get("stage", "update") == "update" and (recipe.advantage or recipe.weight):
            batch = recipe.credit(batch)
        results.append(_numbers(batch, recipe, iteration, layout))
        state = recipe.next_states(state, IterationRecord.of(batch, iteration.get("metrics", {})))
    return results


def _numbered(batch: Batch, seed: int) -> Batch:
    """Return the batch with the places of the case as columns; each seed shuffles the draws."""
    for level in LEVELS:
        rows = batch.num_draws if level == "draw" else int(batch.offsets(level)[-1])
        batch = batch.with_columns(level, **{f"case_{level}": np.arange(rows)})
    order = np.random.default_rng(seed).permutation(batch.num_draws) if seed else np.arange(batch.num_draws)
    return batch.select_draws(order)


def _collected(case: Case, recipe: Recipe, layout: Literal["tree", "sequence"], seed: int) -> list[Numbers]:
    """Return the same numbers for a case that a collector runs."""
    results = []
    with running(recipe, case.pool) as run_:
        for iteration in case.iterations:
            options = run_.options(iteration["expect"].get("option", {}))
            batch = run_.batch(iteration)
            for level, columns in iteration.get("columns", {}).items():
                numbers = {name: np.array([number(value) for value in values]) for name, values in columns.items()}
                batch = batch.with_columns(level, **numbers)
            shuffled = _numbered(batch, seed)
            if recipe.advantage or recipe.weight:
                batch, shuffled = recipe.credit(batch), recipe.credit(shuffled)
            results.append(options | _numbers(shuffled, recipe, iteration, layout))
            run_.close(batch, iteration)
    return results


def _numbers(batch: Batch, recipe: Recipe, iteration: Mapping[str, Any], layout: Any) -> Numbers:
    """Return the numbers that an iteration of a case names."""
    names = [name for name, _ in _flat(iteration["expect"])]
    numbers: Numbers = {}
    for name in names:
        level, _, column = name.partition(".")
        if level in LEVELS:
            values = batch.column(column, level)
            numbers[name] = np.empty(len(values))
            numbers[name][batch.column(f"case_{level}", level).astype(np.int64)] = values
    if any(name.split(".")[0] in ("loss", "gradient") for name in names):
        numbers |= _loss(batch, recipe, iteration, layout)
    return numbers


def _loss(batch: Batch, recipe: Recipe, iteration: Mapping[str, Any], layout: Any) -> Numbers:
    """Return the loss of each model, and its gradient by the model's output for each token.

    If several branches share a token, the first one has its gradient and the others have 0.
    """
    rows = batch.column("case_token", "token").astype(np.int64)
    behaviour = torch.from_numpy(np.nan_to_num(batch.column("behaviour_logprob", "token"))).double()
    _, steps, places = batch.locate_tokens(np.arange(len(rows)))
    stored = np.stack(
        [batch.column("origin_trajectory_id", "step")[steps], batch.column("step", "step")[steps], places]
    )
    by_row = np.argsort(rows)
    _, first, same = np.unique(stored[:, by_row], axis=1, return_index=True, return_inverse=True)
    shared = first[same.reshape(-1)]  # the row, in the case's order, of the first token that shares this one's storage
    numbers: Numbers = {}
    stage = iteration.get("stage", "update")
    several = len(recipe.losses(stage)) > 1
    for update in recipe.updates(batch, stage=stage, models=_moved(recipe)):
        outputs = iteration.get(update.model, {})
        leaves = {name: torch.tensor(_outputs(values), dtype=torch.float64)[rows] for name, values in outputs.items()}
        leaves = {"logprob": behaviour, "entropy": torch.zeros_like(behaviour), **leaves}
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        value = torch.zeros((), dtype=torch.float64)
        for pack in update.pack(max_tokens=10**6, layout=layout):
            output = PackOutput(**{name: leaf[pack.token] for name, leaf in leaves.items()})
            value = value + update.loss(output, pack)
        name = f"loss.{update.model}" if several else "loss"
        numbers[name] = numbers.get(name, 0.0) + value.detach().reshape(1).numpy()
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            key = f"gradient.{name}" if update.model == "policy" else f"gradient.{update.model}.{name}"
            np.add.at(numbers.setdefault(key, np.zeros(gradient.shape)), shared[rows], gradient.numpy())
    return numbers


def _moved(recipe: Recipe) -> dict[str, torch.nn.Module]:
    """Return small models under the names that the recipe's actions use; moving them changes no number of a case."""
    model_names = [
        getattr(action, at, "") for action in recipe.at(0).chain("hooks") for at in ("source", "target", "one", "other")
    ]
    return {name: torch.nn.Linear(1, 1) for name in model_names if name not in ("", BEGIN)}


def _outputs(values: Sequence[Any]) -> list[Any]:
    """Return the output of a model for each token: one number, or several."""
    return [[number(each) for each in value] if isinstance(value, list) else number(value) for value in values]


def agree(actual: Sequence[Numbers], expected: Sequence[Numbers]) -> str:
    """Describe the first number that differs from the expected one; empty if all agree."""
    for place, (one, other) in enumerate(zip(actual, expected, strict=True)):
        for name, right in other.items():
            if name not in one:
                return f"iteration {place}: there is no {name}, but {sorted(one)}"
            values = one[name]
            if values.shape != right.shape:
                return f"iteration {place}: {name} has {len(values)} numbers, not {len(right)}: {values.tolist()}"
            if not np.allclose(values, right, rtol=2e-6, atol=1e-6, equal_nan=True):
                return f"iteration {place}: {name} is {values.tolist()}, not {right.tolist()}"
    return ""


def replaced(value: Any, place: Sequence[str], new: Any) -> Any:
    """Return a recipe, chain or component with another value at a place, such as `["loss", "clip", "low"]`."""
    if not place:
        if isinstance(new, Mapping):
            return find_component("agentrl_core.loss", new)
        return tuple(new) if isinstance(new, list) else new
    if isinstance(value, tuple):
        index = int(place[0])
        return tuple(replaced(link, place[1:], new) if at == index else link for at, link in enumerate(value))
    if isinstance(value, Component) and len(place) == 1:
        fits = [option.name for option in dataclasses.fields(value)]
        assert place[0] in fits, f"{type(value).__name__} has no {place[0]}, but {fits}"
    return dataclasses.replace(value, **{place[0]: replaced(getattr(value, place[0]), place[1:], new)})


MUTATED = ("reward", "advantage", "weight", "loss")
"""The phases that cases run."""
COLLECTED = ("select", "replay")
"""The phases that only a collector runs."""


def mutants(recipe: Recipe, phases: Sequence[str] = MUTATED) -> Iterator[tuple[str, Callable[[], Recipe]]]:
    """Yield the recipe with each of its options reset or changed, and with each link of its chains left out.

    Each variant is built by a call, because a variant that raises an error differs from the recipe too.
    """
    for phase in phases:
        chain = recipe.chain(phase)
        for link, component in enumerate(chain):
            if len(chain) > 1 or phase in ("weight", "replay"):
                rest = (*chain[:link], *chain[link + 1 :])
                yield f"{phase} without {component!r}", partial(recipe.replace, **{phase: rest or None})
            for place, value in _changes(component):
                description = f"{type(component).__name__}.{'.'.join(place)} = {value!r}"
                yield description, partial(_changed, recipe, phase, [str(link), *place], value)


def _changed(recipe: Recipe, phase: str, place: Sequence[str], value: Any) -> Recipe:
    links = replaced(recipe.chain(phase), place, value)
    return recipe.replace(**{phase: links if len(links) > 1 else links[0]})


def _changes(component: Component) -> Iterator[tuple[list[str], Any]]:
    """Yield another value for each non-default option of a component and of nested components."""
    hints = get_type_hints(type(component))
    for option in dataclasses.fields(component):
        value = getattr(component, option.name)
        if isinstance(value, Component):
            yield from (([option.name, *place], new) for place, new in _changes(value))
        default = option.default if option.default_factory is dataclasses.MISSING else option.default_factory()
        if default is dataclasses.MISSING:
            other = _other(value, hints[option.name])
            if other is not None:
                yield [option.name], other
        elif value != default and not (isinstance(value, Component) and type(value) is type(default)):
            yield [option.name], default


def _other(value: Any, hint: Any) -> Any:
    """Return another value for an option without a default; None if no other value is known."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else value * 0.75 or 0.1
    choices = [each for each in get_args(hint) if isinstance(each, str)] if get_origin(hint) is Literal else []
    return next((choice for choice in choices if choice != value), None)
