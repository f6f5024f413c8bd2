"""Check that the components of a recipe find the columns that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_core.component.column import LEVELS, Column, is_declared, token
from agentrl_core.component.component import PHASES, Component
from agentrl_core.component.rows import Rows, level_of
from agentrl_core.data.batch import Batch
from agentrl_core.data.fact_columns import Declared
from agentrl_core.exceptions import InvalidInputError, RecipeError

RECOMPUTED = token("recomputed_logprob", model="policy")
"""Column with recomputed old log-probs."""


def check_columns(
    recipe: str, phases: Mapping[str, tuple[Component, ...]], batch: Batch | None, facts: Declared | None = None
) -> None:
    """Refuse a recipe without a needed phase, or with a component that needs a column that nothing before it provides.

    Args:
        recipe: its name.
        phases: the components of its phases, in the order they run.
        batch: if given, it must already contain the columns that only models compute; otherwise they are annotated
            later.
        facts: if given, all facts that the environment declares besides its reward.

    Raises:
        RecipeError: the recipe is refused.
    """
    made_columns: set[Column] = set()
    for phase, chain in phases.items():
        if not chain and phase not in ("weight", "hooks"):
            raise RecipeError(
                f"recipe {recipe!r}: phase {phase} has no component; add one of agentrl_core.{PHASES[phase]}: "
                f"recipe.replace({phase}=...)"
            )
        for component in chain:
            # Losses of other stages are checked when they get a batch.
            for column in component.needs if getattr(component, "stage", "update") == "update" else ():
                _check_column(recipe, phase, component, column, made_columns, batch, facts)
            made_columns.update(component.makes)


def _check_column(
    recipe: str,
    phase: str,
    component: Component,
    column: Column,
    made_columns: set[Column],
    batch: Batch | None,
    facts: Declared | None,
) -> None:
    level, name = column.level, column.name
    reach = LEVELS[: LEVELS.index(level) + 1]
    if any(Column(coarser, name) in made_columns for coarser in reach) or column.is_fact or is_declared(column, facts):
        return
    if batch is not None:
        if batch.has(name, level) or is_declared(column, batch.facts):
            return
    elif column.model or (facts is None and name.startswith("reward.")):
        return  # to be annotated, or a reward component that the environment declares
    at = "trajectory" if level == "draw" else "step"
    if column.model:
        remedy = f"compute it with a model: {annotate_call(column)}"
    elif facts is not None:
        remedy = (
            "add a component that makes it, or declare it in the environment, "
            f'facts = {{{name!r}: ExtraColumn("{at}")}}, and give it with StepResult(facts=...)'
        )
    else:
        remedy = (
            f"add a component that makes it, or compute it: {annotate_call(column)}, or declare it as a fact of the "
            f'environment: Forest(facts={{"{at}": {{{name!r}: "number"}}}})'
        )
    raise RecipeError(
        f"recipe {recipe!r}: {component.title()} (phase {phase}) needs column {name!r} at level {level}; {remedy}"
    )


_OF_WEIGHT = frozenset(("weight", "advantage_positive", "advantage_negative"))
"""Streams of losses that column `weight` scales or is."""
_KNOWN_FROZEN = ("policy", "proximal", "reference", "reward_reference", "spans")
"""Models that may stay as they are: the policy itself, its copies, references, and parsers of text."""


def check_models(
    recipe: str, read: Iterable[Column], trained: Iterable[str], hooks: Iterable[Component], frozen: Sequence[str]
) -> None:
    """Refuse a recipe that reads outputs of a model which no loss trains, no hook moves and nothing declares frozen.

    Args:
        recipe: its name.
        read: the columns that models compute.
        trained: names of the models that losses train, in any stage.
        hooks: its hooks; they move their `target`, or their models `one` and `other`.
        frozen: names of models that are declared frozen.

    Raises:
        RecipeError: the recipe is refused.
    """
    moved = {getattr(hook, end, "") for hook in hooks for end in ("target", "one", "other")}
    changing = {*trained, *moved}
    for column in read:
        if column.model and column.model not in {*changing, *_KNOWN_FROZEN, *frozen}:
            raise RecipeError(
                f"recipe {recipe!r}: column {column.name!r} is read from model {column.model!r}, which no loss trains "
                f"and no hook changes; add a loss.Train(..., model={column.model!r}) or a hook schedule.SyncModel(..., "
                f"target={column.model!r}), or declare it frozen: recipe.replace(frozen={(*frozen, column.model)!r})"
            )


def check_weight_is_read(recipe: str, weights: Iterable[Component], losses: Iterable[Component]) -> None:
    """Refuse a column `weight` that no loss applies: it scales advantages, and losses such as distillation have none.

    Args:
        recipe: its name.
        weights: its components of phase weight.
        losses: its losses, of all stages.

    Raises:
        RecipeError: the recipe is refused.
    """
    maker = next((each for each in weights if any(column.name == "weight" for column in each.makes)), None)
    loss_streams = [set(getattr(loss, "streams", ())) for loss in losses]
    if maker is not None and loss_streams and all(_OF_WEIGHT.isdisjoint(streams) for streams in loss_streams):
        raise RecipeError(
            f"recipe {recipe!r}: {maker.title()} makes column 'weight', which scales advantages, but no loss reads "
            "advantages, so the weight would have no effect; make column 'kl_weight', which scales a divergence, or "
            "leave the component out"
        )


def check_recomputed(recipe: str, losses: Iterable[Component], batch: Batch) -> None:
    """Refuse a batch without recomputed log-probs if a loss uses ratios to them."""
    ratios = any("old_logprob" in getattr(loss, "streams", ()) for loss in losses)
    if ratios and not batch.has(RECOMPUTED.name, "token"):
        raise RecipeError(
            f"recipe {recipe!r}: old_logprob='recomputed' needs column {RECOMPUTED.name!r} at level token; "
            f"compute it with a model: {annotate_call(RECOMPUTED)}"
        )


def require_made_columns(recipe: str, phase: str, link: Component, batch: Any) -> Batch:
    """Return the output of a component, or raise if a declared column is missing."""
    if not isinstance(batch, Batch):
        raise RecipeError(
            f"recipe {recipe!r}: {link.title()} (phase {phase}) returned {batch!r}; return the batch with its columns: "
            "Rows(batch, level).write(...)"
        )
    for column in link.makes:
        # A column that an earlier component made at a finer level stays at that level.
        finer = LEVELS[LEVELS.index(column.level) :]
        if not any(batch.has(column.name, level) for level in finer):
            raise RecipeError(
                f"recipe {recipe!r}: {link.title()} (phase {phase}) declares column {column.name!r} at level "
                f"{column.level} in makes but did not write it; write it, or remove it from makes"
            )
    return batch


def annotate_call(column: Column) -> str:
    """Return the code with which a model computes a column; for steps and draws with a probe, except gradient norms."""
    if column.model is None:
        return f"batch = arl.annotate(batch, {column.name!r}, model)"
    if column.name.endswith("gradient_norm"):
        return f"batch = arl.annotate(batch, {column.name!r}, {column.model}, level='draw')"
    probe = "" if column.level == "token" else ", probe=probe"
    return f"batch = arl.annotate(batch, {column.name.removesuffix('_before')!r}, {column.model}{probe})"


def require_columns(recipe: str, needs: Iterable[Column], batch: Batch, stage: str) -> None:
    """Refuse a batch that lacks a column for the losses of a stage; the error shows the call that adds it."""
    for column in needs:
        if not batch.has(column.name, column.level):
            remedy = "add the credit first: batch = recipe.credit(batch)"
            if stage != "update":
                remedy = f"add it before stage {stage!r}: {annotate_call(column)}, or batch.with_columns"
            raise RecipeError(f"{recipe}: the batch has no column {column.name!r} at level {column.level}; {remedy}")


def require_finite_credit(recipe: str, phases: Mapping[str, tuple[Component, ...]], batch: Batch) -> None:
    """Refuse an advantage or weight that is not finite at a trained token with a score."""
    tokens = Rows(batch, "token")
    for phase in ("advantage", "weight"):
        if not batch.has(phase, "token") or np.isfinite(batch.column(phase, level_of(batch, phase, "token"))).all():
            continue
        unknown = tokens.valid & ~np.isfinite(tokens.values(phase))
        if batch.has("keep", "token"):
            unknown &= tokens.flags("keep")
        if unknown.any():
            makers = [link for chain in phases.values() for link in chain if phase in {c.name for c in link.makes}]
            source = f"{makers[-1].title()} (phase {makers[-1].phase})" if makers else "the batch"
            place = int(np.flatnonzero(unknown)[0])
            raise RecipeError(
                f"recipe {recipe!r}: {source} gives {int(unknown.sum())} trained tokens the {phase} "
                f"{tokens.values(phase)[place]} (the first is token {place}, of draw {int(tokens.draws[place])}); "
                "give every trained token a finite number, or mask it with column keep"
            )


def require_batch(batch: object) -> None:
    """Refuse a value that is not a batch.

    Raises:
        InvalidInputError: it is not a `Batch`.
    """
    if not isinstance(batch, Batch):
        raise InvalidInputError(f"batch is {type(batch).__name__}; give a Batch, as a collector or a store returns it")


def model_columns_of(links: Sequence[Component], old_logprob: str) -> tuple[Column, ...]:
    """Return the columns of a recipe that models compute, with recomputed log-probs if an `old_logprob` uses them."""
    columns = [column for link in links for column in link.needs if column.model]
    if "recomputed" in (old_logprob, *(getattr(link, "old_logprob", "") for link in links)):
        columns.append(RECOMPUTED)
    return tuple(dict.fromkeys(columns))


def required_facts(phases: Mapping[str, tuple[Component, ...]]) -> tuple[Column, ...]:
    """Return the facts that a recipe needs from the environment: columns that no component or model makes.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.component.component import PHASES
        >>> from agentrl_core.component.requirements import required_facts
        >>> required_facts({phase: recipes.FAPO.chain(phase) for phase in PHASES})
        (draw('flawed'),)
    """
    program = phases.get("rollout", ())
    made_names = {"score", "advantage", "return", "weight", "keep"}.union(
        *(getattr(link, "facts", ()) for link in program)
    )
    facts: dict[Column, None] = {}
    for chain in phases.values():
        for component in chain:
            for column in component.needs:
                if not (column.model or column.is_fact or column.name in made_names):
                    facts[column] = None
            made_names |= {column.name for column in component.makes}
    return tuple(facts)
