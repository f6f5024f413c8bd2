"""Annotate a batch with columns computed by a model, by a function of packs, or from spans of the actions' texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
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
    from agentrl_core.model.ranks import Group
    from agentrl_core.model.run_on_packs import Questions
    from agentrl_core.model.teacher import Answers
    from agentrl_core.model.token_probe import Probe
    from agentrl_core.operators.packing import TreeRows


Given = TypeVar("Given", bound="Batch | None")


def annotate(
    batch: Given,
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
) -> Given:
    """Add a column that a model, a function of packs or a parser of spans computes, such as reference log-probs.

    A model or function is evaluated once for every trained token, or for a probe at every step, without gradients.

    Args:
        batch: the batch; None on other ranks than the first (`group`), where None is returned.
        column: name of the new column. It ends with the name of an output of `Pack.run`: `reference_logprob`,
            `recomputed_logprob`, `current_entropy`, `value`, `old_value`, `sum_probability_squared`; or, at level
            `draw`, with `gradient_norm`.
        model: a model, run at each token's sampling temperature; or a function that takes a `Pack` of sequences and
            returns `[N]` values, for a column of any name. Dropout follows the model's mode: call `model.eval()` for a
            reference. Or `model.spans.Tags` or `model.spans.Parsed`, for a column of any name at level `token` that
            numbers the spans of each draw; the other arguments are left out then.
        max_tokens: largest number of tokens of a pack.
        top_k: number of likeliest tokens of a teacher. `column` then ends with `_logprob`, such as `teacher_logprob`,
            and two more columns with the same beginning are added: `teacher_top_ids` int32 and `teacher_top_logprobs`
            float32, `[rows, k]`, sorted by log-prob; `loss.Divergence` reads them. A function returns log-probs `[N]`,
            ids and log-probs `[N, k]`.
        prompts: token ids for each draw that the model reads in place of the tokens before its first action: a hint,
            feedback, or a solution that the policy did not see. The images of the replaced tokens stay, in their order,
            so each prompt must contain their placeholder tokens too.
        tokenizers: the tokenizers of the policy and of the model, to check that both give each token the same id.
            Token ids alone do not show a difference.
        processor: makes the model's inputs of images that rollouts show. None: the one saved at `model.name_or_path`.
        probe: tokens to score at every step instead, at temperature 1; `model` must then be a model, not a function.
        draws: `bool[draws]`, the draws to run, such as `Where(source="replay").holds(batch)`; None: all. Tokens of the
            others keep their current value. Not with a probe.
        level: `step`: the model's output at the position that predicts the first trained token of each step, before
            the action: V(s_t) of a critic of steps (`loss.Value(level="step")` trains it). `draw`: the norm of the
            gradient of log p of each draw's trained tokens, by the parameters that require one; it takes a backward
            pass for each draw.
        layout: how a model computes packs, as of `Update.pack`. A function gets sequences for `auto`.
        group: ranks that share the work. All call it; the first has the batch, sends each rank its packs, and gets the
            column. None: the ranks over which the model is wrapped (DistributedDataParallel, FSDP), otherwise this
            process alone.
        replay_routes: as of `Update.pack`, for log-probs of a mixture of experts; not with `probe`, `prompts` or
            another `level`.

    Returns:
        A batch with `column` at level `node_token`, float32, NaN if nothing was computed. Values are stored by node,
        so branches that share a token share the value, and the model computes it once. With a probe
        `column` is at level `step` and `<column>_before` at level `draw`; see `Probe`.

    Raises:
        MissingDependencyError: torch is not installed.
        UnsupportedError: the model cannot run packs, or takes no images although rollouts show some.
        InvalidInputError: the column's name does not end with an output of a model, the function did not return N
            values, a sequence exceeds `max_tokens`, draws that share a sampled token have different prompts, a prompt
            has another number of image tokens than the tokens that it replaces, or the tokenizers differ.

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
        option = next((name for name, value in others.items() if value is not None), "level")
        if option != "level" or level != "node_token":
            raise InvalidInputError(f"{option} is given together with Spans, which apply to all tokens; leave it out")
        spans = None if batch is None else batch.with_columns("token", **{column: model.numbered(batch)})
        return cast("Given", spans)
    require_torch("annotate")
    from agentrl_core.model.layouts import check_layout
    from agentrl_core.model.pack_images import with_processor
    from agentrl_core.model.ranks import reshard
    from agentrl_core.model.run_on_packs import run_on_packs

    check_layout(layout)
    if not callable(model):
        raise InvalidInputError(
            f"model is {model!r:.60}; give a torch.nn.Module, or a function that takes a Pack and returns a tensor"
        )
    if replay_routes and (probe is not None or prompts is not None or level == "draw"):
        option = "probe" if probe is not None else "prompts" if prompts is not None else "level='draw'"
        raise InvalidInputError(
            f"replay_routes is given together with {option}, which changes the tokens of packs, so recorded routes do "
            "not fit; leave replay_routes out"
        )
    if level not in ("node_token", "step", "draw"):
        raise InvalidInputError(f"level is {level!r}; give 'node_token', 'step' or 'draw'")
    if tokenizers is not None:
        from agentrl_core.model.teacher import check_tokenizers

        check_tokenizers(tokenizers)
    planned: Any  # a function from the batch to its Questions
    answer: Callable[[Any], Any]
    ready: Callable[[Any], Any] = partial(with_processor, processor=processor)
    if probe is not None:
        others = {"draws": draws, "top_k": top_k, "prompts": prompts}
        option = next((name for name, value in others.items() if value is not None), "level")
        if option != "level" or level != "node_token":
            raise InvalidInputError(f"{option} is given together with probe, which reads every step; leave one out")
        if not isinstance(model, torch.nn.Module):
            raise InvalidInputError(
                f"model is {type(model).__name__}, but a probe needs a model that runs packs; give a torch.nn.Module"
            )
        planned = partial(_probed, column=column, probe=probe, **_packing(model, max_tokens, layout, processor))
        answer = partial(_rows, answer_pack=_answerer(column, model), column=column, width=1)
    elif level == "draw":
        if not column.endswith("gradient_norm") or not isinstance(model, torch.nn.Module) or top_k or prompts:
            problem = f"model is {type(model).__name__}; give a torch.nn.Module"
            if not column.endswith("gradient_norm"):
                problem = f"column is {column!r}; give a name that ends with 'gradient_norm'"
            elif isinstance(model, torch.nn.Module):
                problem = f"{'top_k' if top_k else 'prompts'} is given; leave it out"
            raise InvalidInputError(f"level 'draw' computes gradient norms of a model, but {problem}")
        from agentrl_core.model.gradient_norms import gradient_norm, trained_parameters

        planned = partial(_of_draws, draws=draws, column=column, **_packing(model, max_tokens, layout, processor))
        answer = partial(gradient_norm, model=model, parameters=trained_parameters(model))
        ready = lambda packs: [with_processor(pack, processor) for pack in packs]  # noqa: E731 -- as the others
    else:
        names = _names(column, top_k, level)
        answer_pack: Any = _answerer(column, model) if isinstance(model, torch.nn.Module) else model
        if top_k is not None:
            from agentrl_core.model.teacher import likeliest_answers

            answer_pack = likeliest_answers(cast("Any", model), top_k)
        answer = partial(_rows, answer_pack=answer_pack, column=column, width=_width(top_k))
        packing = _packing(model, max_tokens, layout, processor)

        def planned(found: Batch) -> Questions[Pack]:
            chosen = _chosen(found, draws)
            table = _known(found, names, top_k, chosen)
            annotated = partial(_with_table, found, names, table, top_k, level, chosen)
            if prompts is None:
                return _of_tokens(found, chosen, table, annotated, ranks=among, replay_routes=replay_routes, **packing)
            return _prompted(found, prompts, chosen, table, annotated, **packing)

    among = _ranks_of(model, group)
    if among is None and batch is None:
        raise InvalidInputError("batch is None; give a Batch, or the group of the ranks that share the work")
    if among is not None:
        from agentrl_core.model.collectives import check_first_has

        check_first_has(batch, among)
    result = run_on_packs(lambda: planned(cast("Batch", batch)), answer, among, ready)
    reshard(model)
    return cast("Given", result)


def _chosen(batch: Batch, draws: ArrayLike | None) -> NDArray[np.int64]:
    """Return the indices of the draws to run, from a mask; None: all."""
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
    """Return the process group that shares the packs of a model; None: this process alone."""
    from agentrl_core.model.ranks import group_of_ranks, num_ranks, wrapping_of

    if group is None:
        with torch.no_grad():
            wrapped = isinstance(model, torch.nn.Module) and wrapping_of(model).ranks == num_ranks()
        return group_of_ranks() if wrapped else None
    return group_of_ranks(group)


def _packing(model: object, max_tokens: int, layout: PackLayout, processor: ProcessorMixin | None) -> dict[str, Any]:
    """Return the options of packs, as keyword arguments."""
    return {"model": model, "max_tokens": max_tokens, "layout": layout, "processor": processor}


def _width(top_k: int | None) -> int:
    """Return the number of values per token: the log-prob, and the ids and log-probs of `top_k` tokens."""
    return 1 if top_k is None else 1 + 2 * top_k


def _rows(pack: Pack, *, answer_pack: Callable[[Pack], Tensor], column: str, width: int) -> NDArray[Any]:
    """Return the model's outputs for the prediction pairs of a pack, `[N, width]`."""
    with torch.no_grad():
        answers = answer_pack(pack)
    if answers.shape[:1] != pack.target.shape or answers[:1].numel() not in (0, width):
        raise InvalidInputError(
            f"the function for column {column!r} returned shape {tuple(answers.shape)} for a pack of "
            f"{len(pack.target)} prediction pairs; return one value per pair"
        )
    kind = torch.float64 if answers.dtype == torch.float64 else torch.float32
    rows: NDArray[Any] = answers.to("cpu", kind).numpy().reshape(-1, width)
    return rows


def _names(column: str, top_k: int | None, level: str) -> tuple[str, ...]:
    """Return the names of the new columns: `column`, and two more with `top_k`."""
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
    """Return the table to fill, `[rows, 1 + 2 top_k]`: existing values if only some draws are run, otherwise NaN."""
    width = _width(top_k)
    table = np.full((len(batch.column("token", "node_token")), width), np.nan, np.float32)
    if len(draws) < batch.num_draws and all(batch.has(name, "node_token") for name in names):
        parts = [batch.column(name, "node_token").reshape(len(table), -1) for name in names]
        if sum(part.shape[1] for part in parts) != width:
            raise InvalidInputError(
                f"top_k is {top_k}, but column {names[-1]!r} has {parts[-1].shape[1]} token ids in each row; give "
                f"top_k={parts[-1].shape[1]}"
            )
        table[:] = np.concatenate(parts, axis=1)
    return table


def _columns(names: tuple[str, ...], table: NDArray[np.float32], top_k: int | None) -> dict[str, NDArray[Any]]:
    """Split a table of stored tokens into columns by name."""
    if top_k is None:
        return {names[0]: table[:, 0]}
    top, ids = table[:, 1 : 1 + top_k], table[:, 1 + top_k :]
    token_ids = np.where(np.isnan(ids), -1.0, ids).astype(np.int32)
    return dict(zip(names, (table[:, 0], top, token_ids), strict=True))


def _with_table(
    batch: Batch,
    names: tuple[str, ...],
    table: NDArray[np.float32],
    top_k: int | None,
    level: str,
    draws: NDArray[np.int64],
) -> Batch:
    """Return the batch with the columns of a table, at the level of stored tokens or of steps."""
    if level == "node_token":
        return batch.with_columns("node_token", **_columns(names, table, top_k))
    (column,), values = names, table[:, 0]
    of_steps = batch.offsets("token")
    step_values = np.full(len(of_steps) - 1, np.nan, np.float32)
    if len(draws) < batch.num_draws and batch.has(column, "step"):
        step_values[:] = batch.column(column, "step")
    steps = np.repeat(np.arange(len(step_values)), np.diff(of_steps))
    trained = np.flatnonzero(np.asarray(batch.column("trainable", "token")) != 0)
    steps_with_tokens, first = np.unique(steps[trained], return_index=True)
    run = np.isin(np.repeat(np.arange(batch.num_draws), np.diff(batch.offsets("step")))[steps_with_tokens], draws)
    node_tokens = batch.column("node_token", "token")[trained[first[run]]]
    step_values[steps_with_tokens[run]] = values[node_tokens]
    return batch.with_columns("step", **{column: step_values})


def _of_tokens(
    batch: Batch,
    draws: NDArray[np.int64],
    table: NDArray[np.float32],
    annotated: Callable[[], Batch],
    *,
    ranks: Group | None,
    replay_routes: bool,
    model: object,
    max_tokens: int,
    layout: PackLayout,
    processor: ProcessorMixin | None,
) -> Questions[Pack]:
    """Plan packs of the stored tokens that some draws train; a token of several draws is computed once."""
    from agentrl_core.model.layouts import layout_of, refuse_images_in
    from agentrl_core.model.pack import Pack
    from agentrl_core.model.pack_images import PackImages
    from agentrl_core.model.recorded_routes import RecordedRoutes
    from agentrl_core.model.run_on_packs import Questions

    # A function of the caller may not support trees.
    planned_as: Layout = "tree" if layout == "tree" else "sequence"
    shows = tokens_with_images(batch) is not None
    if shows:
        refuse_images_in(layout)
    elif isinstance(model, torch.nn.Module) and layout == "auto":
        planned_as = "tree" if layout_of(model) == "tree" else "sequence"
    same = {"inverse_temperature": np.asarray(batch.column("inverse_temperature", "token"), dtype=np.float32)}
    shards = None if ranks is None else ranks.size()
    plan = batch.plan(draws, max_tokens, layout=planned_as, fold=list(same.values()), shards=shards)
    stored, routes = batch.column("node_token", "token"), RecordedRoutes(batch) if replay_routes else None
    places: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def make(index: int) -> Pack:
        planned = plan.pack(index, same=same)
        places[index] = stored[planned.pair_tokens], np.diff(planned.pair_offsets)
        return Pack.from_plan(
            planned,
            planned.streams,
            entropy_gradient=False,
            images=PackImages.of(plan, index, batch, processor) if shows else None,
            routed_experts=None if routes is None else routes.of_pack(plan, index),
            layout=layout,
        )

    def keep(index: int, answers: NDArray[Any]) -> None:
        place, counts = places.pop(index)
        table[place] = np.repeat(answers, counts, axis=0)

    return Questions(map(make, range(len(plan))), keep, annotated)


def _prompted(
    batch: Batch,
    prompts: Iterable[ArrayLike],
    draws: NDArray[np.int64],
    table: NDArray[np.float32],
    annotated: Callable[[], Batch],
    *,
    model: object,
    max_tokens: int,
    layout: PackLayout,
    processor: ProcessorMixin | None,
) -> Questions[Pack]:
    """Plan packs of draws whose prompts are replaced; images of the original prompts stay."""
    from agentrl_core.model.architecture import causal_model_of
    from agentrl_core.model.context_images import ContextImages
    from agentrl_core.model.images import image_token, takes_images
    from agentrl_core.model.layouts import layout_of, refuse_images_in
    from agentrl_core.model.teacher import PromptedPacks

    images, placeholder = ContextImages.of(batch, processor), None
    if images is not None:
        refuse_images_in(layout)
        if isinstance(model, torch.nn.Module) and takes_images(model):
            placeholder = image_token(causal_model_of(model))
    packs = PromptedPacks(batch, prompts, draws, images=images, image_token=placeholder)
    shows = tokens_with_images(batch) is not None
    runs_trees = isinstance(model, torch.nn.Module) and not shows and layout_of(model, layout) == "tree"

    def keep(stored: NDArray[Any], answers: NDArray[Any]) -> None:
        table[stored] = answers

    return _of_trees(packs.packs(max_tokens), keep, annotated, layout, runs_trees=runs_trees)


def _probed(
    batch: Batch,
    *,
    column: str,
    probe: Probe,
    model: nn.Module,
    max_tokens: int,
    layout: PackLayout,
    processor: ProcessorMixin | None,
) -> Questions[Pack]:
    """Plan packs that score a probe before every step and at the end of every draw."""
    from agentrl_core.model.context_images import ContextImages
    from agentrl_core.model.layouts import layout_of, refuse_images_in
    from agentrl_core.model.token_probe import ProbePacks

    images = ContextImages.of(batch, processor)
    if images is not None:
        refuse_images_in(layout)
    runs_trees = images is None and layout_of(model, layout) == "tree"
    questions = ProbePacks(batch, probe, images)
    questions_of_tokens, values = [np.zeros(0, np.int64)], [np.zeros(0)]

    def keep(question: NDArray[Any], answers: NDArray[Any]) -> None:
        questions_of_tokens.append(question)
        values.append(answers[:, 0].astype(np.float64))

    def annotated() -> Batch:
        after, before = questions.columns(np.concatenate(questions_of_tokens), np.concatenate(values))
        return batch.with_columns("step", **{column: after}).with_columns("draw", **{f"{column}_before": before})

    return _of_trees(questions.packs(max_tokens), keep, annotated, layout, runs_trees=runs_trees)


def _of_trees(
    packs: Iterator[tuple[Pack, TreeRows, NDArray[Any]]],
    keep: Callable[[NDArray[Any], NDArray[Any]], None],
    annotated: Callable[[], Batch],
    layout: PackLayout,
    *,
    runs_trees: bool,
) -> Questions[Pack]:
    """Make packs one after the other; `keep` gets the number of each scored token, and the model's output for it."""
    from agentrl_core.model.run_on_packs import Questions

    places: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def packs_in_layout() -> Iterator[Pack]:
        for number, (pack, tree, numbers) in enumerate(packs):
            places[number] = numbers[tree.pair_tokens], np.diff(tree.pair_offsets)
            laid_out = replace(pack, layout=layout)
            yield laid_out if runs_trees else laid_out.as_sequences()

    def keep_answers(number: int, answers: NDArray[Any]) -> None:
        place, counts = places.pop(number)
        keep(place, np.repeat(answers, counts, axis=0))

    return Questions(packs_in_layout(), keep_answers, annotated)


def _of_draws(
    batch: Batch,
    *,
    draws: ArrayLike | None,
    column: str,
    model: nn.Module,
    max_tokens: int,
    layout: PackLayout,
    processor: ProcessorMixin | None,
) -> Questions[list[Pack]]:
    """Plan the packs of each draw, for the norm of the draw's gradient."""
    from agentrl_core.model.gradient_norms import packs_of_draw
    from agentrl_core.model.run_on_packs import Questions

    norms, chosen = np.full(batch.num_draws, np.nan, np.float32), _chosen(batch, draws)

    packs = (list(packs_of_draw(batch, draw, max_tokens, layout, model, processor)) for draw in chosen.tolist())

    def keep(number: int, norm: float) -> None:
        norms[chosen[number]] = norm

    return Questions(packs, keep, lambda: batch.with_columns("draw", **{column: norms}))


def _answerer(column: str, model: nn.Module) -> Callable[[Pack], Tensor]:
    """Return a function that runs a model on a pack and returns the output that the column's name ends with."""
    from agentrl_core.model.output_layer import ANSWERS

    names = sorted(("logprob", "entropy", *ANSWERS), key=len, reverse=True)
    answer = next((name for name in names if column == name or column.endswith(f"_{name}")), None)
    if answer is None:
        raise InvalidInputError(
            f"column is {column!r}, which does not end with an output of a model; end it with one of "
            f"{', '.join(names)}, such as 'reference_logprob', or give a function"
        )

    def answer_pack(pack: Pack) -> Tensor:
        answers: Tensor = getattr(pack.run(model, outputs=(answer,) if answer in ANSWERS else ()), answer)
        return answers

    return answer_pack
