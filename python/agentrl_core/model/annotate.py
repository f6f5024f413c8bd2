"""Annotate: columns that only a model can make, pack by pack and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core._util.lazy_torch import require_torch, torch
from agentrl_core.data.sampling_record import tokens_with_images
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.spans import Spans

if TYPE_CHECKING:
    from torch import Tensor, distributed, nn
    from transformers import ProcessorMixin

    from agentrl_core.data.batch import Batch, Layout
    from agentrl_core.model.layouts import PackLayout
    from agentrl_core.model.pack import Pack
    from agentrl_core.model.probe import Probe
    from agentrl_core.model.ranks import Group
    from agentrl_core.model.teacher import Answers, PromptedPacks


Made = TypeVar("Made")


def annotate(
    batch: Batch,
    column: str,
    model: nn.Module | Callable[[Pack], Tensor | Answers] | Spans,
    *,
    max_tokens: int = 16_384,
    probe: Probe | None = None,
    top_k: int | None = None,
    prompts: Iterable[ArrayLike] | None = None,
    tokenizers: tuple[Any, Any] | None = None,
    processor: ProcessorMixin | None = None,
    draws: ArrayLike | None = None,
    level: Literal["node_token", "step", "draw"] = "node_token",
    layout: PackLayout = "auto",
    group: distributed.ProcessGroup | None = None,
    replay_routes: bool = False,
) -> Batch:
    """Add a column that only a model can make, such as the log-probs of a reference model.

    The model answers for every trained token, or for a probe at every step, once and without gradients.

    Args:
        batch: the batch.
        column: name of the new column. It ends with the answer of `Pack.run` that a model gives: `reference_logprob`,
            `recomputed_logprob`, `current_entropy`, `value`, `old_value`, `sum_probability_squared`; or, at level
            `draw`, with `gradient_norm`.
        model: a model, run at each token's sampling temperature; or a function that takes a `Pack` of sequences and
            returns `[N]` values, for a column of any name. Dropout follows the model's mode: call `model.eval()` for a
            reference. Or `model.spans.Tags` or `model.spans.Parsed`, for a column of any name at level `token` that
            numbers the spans of each draw; the other arguments are left out then.
        max_tokens: tokens of a pack.
        top_k: number of likeliest tokens of a teacher. `column` then ends with `_logprob`, such as `teacher_logprob`,
            and two more columns begin as it does: `teacher_top_ids` int32 and `teacher_top_logprobs` float32, `[rows,
            k]`, sorted by log-prob; `loss.Divergence` reads them. A function returns log-probs `[N]`, ids and log-probs
            `[N, k]`.
        prompts: token ids for each draw that the model reads in place of the tokens before its first action: a hint,
            feedback, or a solution that the policy did not see. Images that stood there stay, in their order, so each
            prompt has their tokens too.
        tokenizers: those of the policy and of the model, which are compared. Token ids alone do not show that two
            models number tokens differently.
        processor: makes the model's inputs of images that rollouts show. None: the one saved at `model.name_or_path`.
        probe: what to ask at every step instead, at temperature 1; then `model` is a model.
        draws: `bool[draws]`, which are run, such as `Where(source="replay").holds(batch)`; None: all. Tokens of the
            others keep the value that they have. Not with a probe.
        level: `step`: what is said where the first trained token of each step is predicted, before the action: V(s_t)
            of a critic of steps (`loss.Value(level="step")` trains it). `draw`: the norm of the gradient of log p of
            each draw's trained tokens, by the parameters that require one; it takes a backward pass for each draw.
        layout: how a model computes packs, as of `Update.pack`. A function gets sequences for `auto`.
        group: ranks that share the work: each runs a part of the packs, and all get the whole column. All call it with
            the same batch. None: those over which the model is wrapped (DistributedDataParallel, FSDP); else this
            process alone.
        replay_routes: as of `Update.pack`, for log-probs of a mixture of experts; not with `probe`, `prompts` or
            another `level`.

    Returns:
        A batch with `column` at level `node_token`, float32, NaN where nothing was computed. Tokens find their value
        through their node, so branches that share a token share the value, and a model computes it once. With a probe
        `column` is at level `step` and `<column>_before` at level `draw`; see `Probe`.

    Raises:
        MissingDependencyError: torch is not installed.
        UnsupportedError: the model cannot run packs, or takes no images although rollouts show some.
        InvalidInputError: the column's name ends with no answer of a model, the function returned something else than
            N values, a sequence exceeds `max_tokens`, draws that share a sampled token have different prompts, a prompt
            has another number of image tokens than the one that it replaces, or the tokenizers differ.

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
        others = {"probe": probe, "draws": draws, "top_k": top_k, "prompts": prompts, "tokenizers": tokenizers}
        given = next((name for name, value in others.items() if value is not None), "level")
        if given != "level" or level != "node_token":
            raise InvalidInputError(
                f"{given} is given together with spans, which are those of all tokens; leave it out"
            )
        return batch.with_columns("token", **{column: model.numbered(batch)})
    require_torch("annotate")
    from agentrl_core.model.layouts import check_layout, layout_of, refuse_images_in
    from agentrl_core.model.ranks import reshard

    check_layout(layout)
    if not callable(model):
        raise InvalidInputError(f"model is {model!r}; give a torch.nn.Module or a function from a Pack to [N] values")
    chosen = _chosen(batch, draws)
    if replay_routes and (probe is not None or prompts is not None or level == "draw"):
        raise InvalidInputError(
            "replay_routes is given together with probe, prompts or level 'draw', whose packs have other tokens than "
            "the rollouts; leave it out"
        )
    if tokenizers is not None:
        from agentrl_core.model.teacher import check_tokenizers

        check_tokenizers(tokenizers)
    if probe is not None:
        others = {"draws": draws, "top_k": top_k, "prompts": prompts}
        given = next((name for name, value in others.items() if value is not None), "level")
        if given != "level" or level != "node_token":
            raise InvalidInputError(f"{given} is given together with probe, which asks at every step; leave one out")
        return _with_answers_to_probe(batch, column, cast("Any", model), max_tokens, probe, layout, group, processor)
    if level == "draw":
        if not column.endswith("gradient_norm") or not isinstance(model, torch.nn.Module) or top_k or prompts:
            raise InvalidInputError(
                f"level is 'draw' for column {column!r}; give a torch.nn.Module and a name that ends with "
                "'gradient_norm', without top_k and prompts"
            )
        from agentrl_core.model.gradient_norms import gradient_norms

        among = _ranks_of(model, group)
        norms = gradient_norms(
            batch, model, chosen, max_tokens=max_tokens, layout=layout, processor=processor, group=among
        )
        return batch.with_columns("draw", **{column: norms})
    # A function may not know trees. Either way a stored token is asked once, whichever draws train it.
    planned: Layout = "tree" if layout == "tree" else "sequence"
    shows = tokens_with_images(batch) is not None
    if shows:
        refuse_images_in(layout)
    elif isinstance(model, torch.nn.Module) and layout == "auto":
        planned = "tree" if layout_of(model) == "tree" else "sequence"
    names = _names(column, top_k, level)
    answer_pack = _answerer(column, model) if isinstance(model, torch.nn.Module) else model
    if top_k is not None:
        from agentrl_core.model.teacher import likeliest_answers

        answer_pack = likeliest_answers(cast("Any", model), top_k)
    table = _known(batch, names, top_k, chosen)
    among = _ranks_of(model, group)
    if prompts is None:
        made_by = (layout, planned), chosen, among, processor if shows else None, replay_routes
        _answer(batch, table, cast("Any", answer_pack), column, max_tokens, *made_by)
    else:
        packs = _prompted(batch, prompts, chosen, model, layout, processor)
        runs_trees = isinstance(model, torch.nn.Module) and not shows and layout_of(model, layout) == "tree"
        _check_equal(among, batch, chosen, max_tokens)
        _answer_prompted(packs, table, cast("Any", answer_pack), max_tokens, layout, among, runs_trees=runs_trees)
    reshard(model)
    if level == "node_token":
        return batch.with_columns("node_token", **_columns(names, table, top_k))
    values = table[:, 0]
    if level != "step":
        raise InvalidInputError(f"level is {level!r}; give 'node_token', 'step' or 'draw'")
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


def _names(column: str, top_k: int | None, level: str) -> tuple[str, ...]:
    """The columns that are made."""
    if top_k is None:
        return (column,)
    number: object = top_k
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInputError(f"top_k is {top_k!r}; give a whole number of at least 1, or None")
    if not column.endswith("_logprob") or level != "node_token":
        raise InvalidInputError(
            f"column is {column!r} at level {level!r} with top_k={top_k}; give a name that ends with '_logprob', such "
            "as 'teacher_logprob', at level 'node_token'"
        )
    prefix = column.removesuffix("logprob")
    return column, f"{prefix}top_logprobs", f"{prefix}top_ids"


def _known(batch: Batch, names: tuple[str, ...], top_k: int | None, draws: NDArray[np.int64]) -> NDArray[np.float32]:
    """A row for each stored token, with what is known of the tokens of other draws: `[rows, 1 + 2 top_k]`."""
    width = 1 if top_k is None else 1 + 2 * top_k
    table = np.full((len(batch.column("token", "node_token")), width), np.nan, np.float32)
    if len(draws) < batch.num_draws and all(batch.has(name, "node_token") for name in names):
        parts = [batch.column(name, "node_token").reshape(len(table), -1) for name in names]
        if sum(part.shape[1] for part in parts) != width:
            raise InvalidInputError(
                f"top_k is {top_k}, but the other draws have {parts[-1].shape[1]} tokens each; give the same number"
            )
        table[:] = np.concatenate(parts, axis=1)
    return table


def _columns(names: tuple[str, ...], table: NDArray[np.float32], top_k: int | None) -> dict[str, NDArray[Any]]:
    """The columns of a table."""
    if top_k is None:
        return {names[0]: table[:, 0]}
    top, ids = table[:, 1 : 1 + top_k], table[:, 1 + top_k :]
    whole = np.where(np.isnan(ids), -1.0, ids).astype(np.int32)
    return dict(zip(names, (table[:, 0], top, whole), strict=True))


def _answer(
    batch: Batch,
    table: NDArray[np.float32],
    answer_pack: Callable[[Pack], Tensor],
    column: str,
    max_tokens: int,
    layouts: tuple[PackLayout, Layout],
    draws: NDArray[np.int64],
    group: Group | None,
    processor: ProcessorMixin | None,
    replay_routes: bool,  # noqa: FBT001 -- of a private function
) -> None:
    """Write the answer for every stored token that these draws train."""
    from agentrl_core.model.pack import Pack
    from agentrl_core.model.pack_images import PackImages
    from agentrl_core.model.recorded_routes import RecordedRoutes

    same = {"inverse_temperature": np.asarray(batch.column("inverse_temperature", "token"), dtype=np.float32)}
    layout, planned_as = layouts
    rank, ranks = (0, None) if group is None else (group.rank(), group.size())
    _check_equal(group, batch, draws, max_tokens)
    plan = batch.plan(draws, max_tokens, layout=planned_as, fold=list(same.values()), shards=ranks)
    stored, shows = batch.column("node_token", "token"), tokens_with_images(batch) is not None
    routes = RecordedRoutes(batch) if replay_routes else None
    places, found = [np.zeros(0, np.int64)], [table[:0]]
    for index in range(rank, len(plan), ranks or 1):
        planned = plan.pack(index, same=same)
        pack = Pack.from_plan(
            planned,
            planned.streams,
            entropy_gradient=False,
            images=PackImages.of(plan, index, batch, processor) if shows else None,
            routed_experts=None if routes is None else routes.of_pack(plan, index),
            layout=layout,
        )
        with torch.no_grad():
            answers = answer_pack(pack)
        if answers.shape[:1] != pack.target.shape or answers[:1].numel() not in (0, table.shape[1]):
            raise InvalidInputError(
                f"the function for column {column!r} returned shape {tuple(answers.shape)} for a pack of "
                f"{len(pack.target)} prediction pairs; return one value per pair"
            )
        answered = answers.to("cpu", torch.float32).numpy().reshape(-1, table.shape[1])
        places.append(stored[planned.pair_tokens])
        found.append(np.repeat(answered, np.diff(planned.pair_offsets), axis=0))
    place, answers_of_ranks = _of_ranks(group, np.concatenate(places), np.concatenate(found))
    table[place] = answers_of_ranks


def _prompted(
    batch: Batch,
    prompts: Iterable[ArrayLike],
    draws: NDArray[np.int64],
    model: object,
    layout: PackLayout,
    processor: ProcessorMixin | None,
) -> PromptedPacks:
    """Draws under other prompts, which keep the images of theirs."""
    from agentrl_core.model.architecture import causal_model_of
    from agentrl_core.model.context_rows import ContextImages
    from agentrl_core.model.images import image_token, takes_images
    from agentrl_core.model.layouts import refuse_images_in
    from agentrl_core.model.teacher import PromptedPacks

    images, placeholder = ContextImages.of(batch, processor), None
    if images is not None:
        refuse_images_in(layout)
        if isinstance(model, torch.nn.Module) and takes_images(model):
            placeholder = image_token(causal_model_of(model))
    return PromptedPacks(batch, prompts, draws, images=images, image_token=placeholder)


def _answer_prompted(
    packs: PromptedPacks,
    table: NDArray[np.float32],
    answer_pack: Callable[[Pack], Tensor],
    max_tokens: int,
    layout: PackLayout,
    group: Group | None,
    *,
    runs_trees: bool,
) -> None:
    """The same of draws under other prompts."""
    places, found = [np.zeros(0, np.int64)], [table[:0]]
    for (pack, tree, stored), counts in _own_part(packs.packs(max_tokens), group):
        made = replace(pack, layout=layout)
        with torch.no_grad():
            answers = answer_pack(made if runs_trees else made.as_sequences())
        if counts:
            answered = answers.to("cpu", torch.float32).numpy().reshape(-1, table.shape[1])
            places.append(stored[tree.pair_tokens])
            found.append(np.repeat(answered, np.diff(tree.pair_offsets), axis=0))
    place, answers_of_ranks = _of_ranks(group, np.concatenate(places), np.concatenate(found))
    table[place] = answers_of_ranks


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
    processor: ProcessorMixin | None,
) -> Batch:
    from agentrl_core.model.context_rows import ContextImages
    from agentrl_core.model.layouts import layout_of, refuse_images_in
    from agentrl_core.model.probe import ProbePacks
    from agentrl_core.model.ranks import reshard

    if not isinstance(model, torch.nn.Module):
        raise InvalidInputError(
            f"model is {type(model).__name__}, but a probe is asked of a torch.nn.Module; a function cannot read trees"
        )
    answer_pack = _answerer(column, model)
    images = ContextImages.of(batch, processor)
    if images is not None:
        refuse_images_in(layout)
    runs_trees = images is None and layout_of(model, layout) == "tree"
    questions = ProbePacks(batch, probe, images)
    asked, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    among = _ranks_of(model, group)
    _check_equal(among, batch, *probe.rows, max_tokens)
    for (pack, tree, question), counts in _own_part(questions.packs(max_tokens), among):
        made = replace(pack, layout=layout)
        with torch.no_grad():
            answers = answer_pack(made if runs_trees else made.as_sequences())
        if counts:
            asked.append(question[tree.pair_tokens])
            values.append(np.repeat(answers.to("cpu", torch.float64).numpy(), np.diff(tree.pair_offsets)))
    reshard(model)
    after, before = questions.columns(*_of_ranks(among, np.concatenate(asked), np.concatenate(values)))
    return batch.with_columns("step", **{column: after}).with_columns("draw", **{f"{column}_before": before})


def _own_part(packs: Iterator[Made], group: Group | None) -> Iterator[tuple[Made, bool]]:
    """The packs of this rank, and whether they count: one that has none in the last round runs that of another."""
    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    number, latest = 0, None
    for number, latest in enumerate(packs, 1):
        if (number - 1) % ranks == rank:
            yield latest, True
    if latest is not None and 0 < number % ranks <= rank:
        yield latest, False


def _answerer(column: str, model: nn.Module) -> Callable[[Pack], Tensor]:
    """Return the output of a model on a pack that a column of this name holds."""
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
