"""Annotate: columns that only a model can make, pack by pack and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core._util.lazy_torch import require_torch, torch
from agentrl_core.data.sampling_record import tokens_with_images
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.spans import Spans

if TYPE_CHECKING:
    from torch import Tensor, distributed, nn

    from agentrl_core.data.batch import Batch, Layout
    from agentrl_core.model.layouts import PackLayout
    from agentrl_core.model.pack import Pack
    from agentrl_core.model.probe import Probe
    from agentrl_core.model.ranks import Group
    from agentrl_core.operators.packing import TreeRows


def annotate(
    batch: Batch,
    column: str,
    model: nn.Module | Callable[[Pack], Tensor] | Spans,
    *,
    max_tokens: int = 16_384,
    probe: Probe | None = None,
    draws: ArrayLike | None = None,
    level: Literal["node_token", "step"] = "node_token",
    layout: PackLayout = "auto",
    group: distributed.ProcessGroup | None = None,
) -> Batch:
    """Add a column that only a model can make, such as the log-probs of a reference model.

    The model answers for every trained token, or for a probe at every step, once and without gradients.

    Args:
        batch: the batch.
        column: name of the new column. It ends with the answer of `Pack.run` that a model gives: `reference_logprob`,
            `recomputed_logprob`, `current_entropy`, `value`, `old_value`, `sum_probability_squared`.
        model: a model, run at each token's sampling temperature; or a function that takes a `Pack` of sequences and
            returns `[N]` values, for a column of any name. Dropout follows the model's mode: call `model.eval()` for a
            reference. Or `model.spans.Tags` or `model.spans.Parsed`, for a column of any name at level `token` that
            numbers the spans of each draw; the other arguments are left out then.
        max_tokens: tokens of a pack.
        probe: what to ask at every step instead, at temperature 1; then `model` is a model.
        draws: `bool[draws]`, which are run, such as `Where(source="replay").holds(batch)`; None: all. Tokens of the
            others keep the value that they have. Not with a probe.
        level: `step`: what is said where the first trained token of each step is predicted, before the action: V(s_t)
            of a critic of steps (`loss.Value(level="step")` trains it).
        layout: how a model computes packs, as of `Update.pack`. A function gets sequences for `auto`.
        group: ranks that share the work: each runs a part of the packs, and all get the whole column. All call it with
            the same batch. None: those over which the model is wrapped (DistributedDataParallel, FSDP); else this
            process alone.

    Returns:
        A batch with `column` at level `node_token`, float32, NaN where nothing was computed. Tokens find their value
        through their node, so branches that share a token share the value, and a model computes it once. With a probe
        `column` is at level `step` and `<column>_before` at level `draw`; see `Probe`.

    Raises:
        MissingDependencyError: torch is not installed.
        UnsupportedError: the model cannot run packs, or images were in sight of what it is to run.
        InvalidInputError: the column's name ends with no answer of a model, the function returned something else than
            N values, or a sequence exceeds `max_tokens`.

    Example:
        A function in place of a model:

        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> trajectory = forest.start(0, member=0)
        >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
        >>> _ = forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.1])
        >>> forest.finish(trajectory, reward=1.0)
        >>> batch = arl.annotate(forest.freeze(), "half", lambda pack: pack.target / 2)
        >>> batch.column("half", "token").tolist()
        [1.5, 2.0]
    """
    if not isinstance(column, str):
        raise InvalidInputError(f"column is {column!r}; give the name of the new column, such as 'reference_logprob'")
    if isinstance(model, Spans):
        if probe is not None or draws is not None or level != "node_token":
            given = "probe" if probe is not None else "draws" if draws is not None else "level"
            raise InvalidInputError(
                f"{given} is given together with spans, which are those of all tokens; leave it out"
            )
        return batch.with_columns("token", **{column: model.numbered(batch)})
    require_torch("annotate")
    from agentrl_core.model.layouts import check_layout, layout_of
    from agentrl_core.model.ranks import reshard

    check_layout(layout)
    if not callable(model):
        raise InvalidInputError(f"model is {model!r}; give a torch.nn.Module or a function from a Pack to [N] values")
    chosen = _chosen(batch, draws)
    if probe is not None:
        if draws is not None or level != "node_token":
            given = "level" if draws is None else "draws"
            raise InvalidInputError(f"{given} is given together with probe, which asks at every step; leave one out")
        return _with_answers_to_probe(batch, column, model, max_tokens, probe, layout, group)
    # A function may not know trees. Either way a stored token is asked once, whichever draws train it.
    planned: Layout = "tree" if layout == "tree" else "sequence"
    if isinstance(model, torch.nn.Module) and layout == "auto":
        planned = "tree" if layout_of(model) == "tree" else "sequence"
    answer_pack = _answerer(column, model) if isinstance(model, torch.nn.Module) else model
    values = _answers(batch, column, answer_pack, max_tokens, (layout, planned), chosen, _ranks_of(model, group))
    reshard(model)
    if level == "node_token":
        return batch.with_columns("node_token", **{column: values})
    if level != "step":
        raise InvalidInputError(f"level is {level!r}; give 'node_token' or 'step'")
    of_steps = batch.offsets("token")
    found = np.full(len(of_steps) - 1, np.nan, np.float32)
    if len(chosen) < batch.num_draws and batch.has(column, "step"):
        found[:] = batch.column(column, "step")
    steps = np.repeat(np.arange(len(found)), np.diff(of_steps))
    trained = np.flatnonzero(np.asarray(batch.column("trainable", "token")) != 0)
    begun, first = np.unique(steps[trained], return_index=True)
    run = np.isin(np.repeat(np.arange(batch.num_draws), np.diff(batch.offsets("step")))[begun], chosen)
    answered = batch.column("node_token", "token")[trained[first[run]]]
    found[begun[run]] = values[answered]
    return batch.with_columns("step", **{column: found})


def _chosen(batch: Batch, draws: ArrayLike | None) -> NDArray[np.int64]:
    """The draws that are run."""
    if draws is None:
        return np.arange(batch.num_draws)
    mask = np.asarray(draws)
    if mask.dtype != np.bool_ or mask.shape != (batch.num_draws,):
        raise InvalidInputError(
            f"draws is of dtype {mask.dtype} and shape {mask.shape}; give a bool for each of the "
            f"{batch.num_draws} draws"
        )
    return np.flatnonzero(mask)


def _ranks_of(model: object, group: distributed.ProcessGroup | None) -> Group | None:
    """The ranks that share the packs, or None."""
    from agentrl_core.model.ranks import group_of_ranks, num_ranks, wrapping_of

    if group is None:
        with torch.no_grad():
            wrapped = isinstance(model, torch.nn.Module) and wrapping_of(model).ranks == num_ranks()
        return group_of_ranks() if wrapped else None
    return group_of_ranks(group)


def _check_equal(group: Group | None, batch: Batch, *others: ArrayLike) -> None:
    """Refuse ranks with different batches."""
    if group is not None:
        from agentrl_core.model.collectives import check_equal

        check_equal(group, batch.column("token", "node_token"), *others)


def _answers(
    batch: Batch,
    column: str,
    answer_pack: Callable[[Pack], Tensor],
    max_tokens: int,
    layouts: tuple[PackLayout, Layout],
    draws: NDArray[np.int64],
    group: Group | None,
) -> np.ndarray:
    """The answer for every stored token that these draws train."""
    from agentrl_core.model.pack import Pack

    values = np.full(len(batch.column("token", "node_token")), np.nan, dtype=np.float32)
    if len(draws) < batch.num_draws and batch.has(column, "node_token"):
        values[:] = batch.column(column, "node_token")
    same = {"inverse_temperature": np.asarray(batch.column("inverse_temperature", "token"), dtype=np.float32)}
    layout, planned_as = layouts
    rank, ranks = (0, None) if group is None else (group.rank(), group.size())
    _check_equal(group, batch, draws, max_tokens)
    plan = batch.plan(draws, max_tokens, layout=planned_as, fold=list(same.values()), shards=ranks)
    stored, images = batch.column("node_token", "token"), tokens_with_images(batch)
    places, found = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for index in range(rank, len(plan), ranks or 1):
        planned = plan.pack(index, same=same)
        shows = images is not None and bool(images[planned.token].any())
        pack = Pack.from_plan(planned, planned.streams, entropy_gradient=False, shows_images=shows, layout=layout)
        with torch.no_grad():
            answers = answer_pack(pack)
        if answers.shape != pack.target.shape:
            raise InvalidInputError(
                f"the function for column {column!r} returned shape {tuple(answers.shape)} for a pack of "
                f"{len(pack.target)} prediction pairs; return one value per pair"
            )
        answered = answers.to("cpu", torch.float32).numpy()
        places.append(stored[planned.pair_tokens])
        found.append(np.repeat(answered, np.diff(planned.pair_offsets)))
    place, answers_of_ranks = _of_ranks(group, np.concatenate(places), np.concatenate(found))
    values[place] = answers_of_ranks
    return values


def _of_ranks(group: Group | None, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The rows of all ranks."""
    if group is None:
        return columns
    from agentrl_core.model.collectives import gathered_objects

    return tuple(np.concatenate(gathered_objects(column, group)) for column in columns)


def _with_answers_to_probe(
    batch: Batch,
    column: str,
    model: nn.Module | Callable[[Pack], Tensor],
    max_tokens: int,
    probe: Probe,
    layout: PackLayout,
    group: distributed.ProcessGroup | None,
) -> Batch:
    from agentrl_core.model.layouts import layout_of
    from agentrl_core.model.pack import Pack
    from agentrl_core.model.probe import ProbePacks
    from agentrl_core.model.ranks import reshard

    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(
            f"model is {type(model).__name__}, but a probe is asked of a torch.nn.Module; a function cannot read trees"
        )
    answer_pack = _answerer(column, model)
    runs_trees = layout_of(model, layout) == "tree"
    questions, shows = ProbePacks(batch, probe), tokens_with_images(batch) is not None
    asked, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    among = _ranks_of(model, group)
    _check_equal(among, batch, *probe.rows, max_tokens)
    for tree, question, counts in _own_part(questions.packs(max_tokens), among):
        with torch.no_grad():
            pack = replace(Pack.from_tree(tree, entropy_gradient=False), shows_images=shows, layout=layout)
            if not runs_trees:
                pack = pack.as_sequences()
            answers = answer_pack(pack)
        if counts:
            asked.append(question[tree.pair_tokens])
            values.append(np.repeat(answers.to("cpu", torch.float64).numpy(), np.diff(tree.pair_offsets)))
    reshard(model)
    after, before = questions.columns(*_of_ranks(among, np.concatenate(asked), np.concatenate(values)))
    return batch.with_columns("step", **{column: after}).with_columns("draw", **{f"{column}_before": before})


def _own_part(
    packs: Iterator[tuple[TreeRows, NDArray[np.int64]]], group: Group | None
) -> Iterator[tuple[TreeRows, NDArray[np.int64], bool]]:
    """The packs of this rank, and whether they count: one that has none in the last round runs that of another."""
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    number, latest = 0, None
    for number, latest in enumerate(packs, 1):
        if (number - 1) % ranks == rank:
            yield *latest, True
    if latest is not None and 0 < number % ranks <= rank:
        yield *latest, False


def _answerer(column: str, model: nn.Module) -> Callable[[Pack], Tensor]:
    """Return a model's outputs for a pack; the name of a column selects its output."""
    from agentrl_core.model.scores import ANSWERS

    names = sorted(("logprob", "entropy", *ANSWERS), key=len, reverse=True)
    answer = next((name for name in names if column == name or column.endswith(f"_{name}")), None)
    if answer is None:
        raise InvalidInputError(
            f"column is {column!r}, but a model answers {', '.join(names)}; end the name with one of them, such as "
            "'reference_logprob', or give a function"
        )

    def answer_pack(pack: Pack) -> Tensor:
        answers: Tensor = getattr(pack.run(model, outputs=(answer,) if answer in ANSWERS else ()), answer)
        return answers

    return answer_pack
