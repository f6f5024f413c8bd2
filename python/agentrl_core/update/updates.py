"""Updates: the optimizer steps of one batch, and the packs of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.update.pairs import pairs_of

if TYPE_CHECKING:
    from torch import Tensor, distributed, nn

    from agentrl_core._core import Plan
    from agentrl_core.data.batch import Balance, Batch, Layout
    from agentrl_core.loss import Loss, Train
    from agentrl_core.model.buffers import PackBuffers
    from agentrl_core.model.pack import Pack, PackOutput
    from agentrl_core.recipe import Recipe

_ADVANTAGES = ("advantage_positive", "advantage_negative")
_SUMMED = (*_ADVANTAGES, "weight_kl", "weight_entropy")  # of a token that branches share, over its branches
_IDS = ("step", "sequence", "pair", "group", "stratum")  # streams that number the rows' segments


class Updates:
    """The optimizer steps of a batch: epochs x minibatches of them for each loss. `Recipe.updates` makes one.

    In each epoch the draws whose score is finite are put in a fresh order and dealt into as many parts as the loss has
    minibatches, of equal size (up to one; a part is never empty, so a tiny batch has fewer). The order is keyed by
    (seed, epoch). Of a loss on groups or pairs these are dealt instead, so that each is whole in one update. The pairs
    are the two draws with the same number in the draws' column `pair` (negative: no pair); without it the groups, of
    two draws each. Losses run one after the other, each with its own draws, denominators and metrics.

    Attributes:
        recipe: the recipe.
        batch: the batch, with the columns that the losses need.
    """

    def __init__(self, recipe: Recipe, batch: Batch, *, stage: str = "update", seed: int = 0) -> None:
        self.recipe = recipe
        self.batch = batch
        self._parts = [_Steps(recipe, batch, training, seed) for training in recipe.training(stage)]

    def __len__(self) -> int:
        """How many optimizer steps there are."""
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Update]:
        """Yield the optimizer steps in order."""
        for steps in self._parts:
            yield from steps

    @property
    def metrics(self) -> dict[str, float]:
        """Means over what `Update.loss` has seen so far: `loss` per update, everything else per trained token.

        Also `tokens`, how many trained tokens that were, and `updates`. Those of another model than `policy` have its
        name before them: `critic.loss`. Reading it waits for the device; nothing else does.
        """
        return {
            name if steps.model == "policy" else f"{steps.model}.{name}": value
            for steps in self._parts
            for name, value in steps.metrics().items()
        }


class _Steps:
    """The optimizer steps of one loss."""

    def __init__(self, recipe: Recipe, batch: Batch, training: Train, seed: int) -> None:
        self.recipe = recipe
        self.batch = batch
        self.model = training.model
        self._loss = training.loss
        self._epochs = cast("int", training.epochs)
        self._minibatches = cast("int", training.minibatches)
        self._seed = seed
        scored = batch.has("score", "draw")  # an advantage of one's own may come without a score
        self._valid: NDArray[np.bool_] = (
            np.isfinite(batch.column("score", "draw")) if scored else np.ones(batch.num_draws, dtype=np.bool_)
        )
        # The segments that a draw belongs to; a sequence is a draw, in however many contexts it was generated.
        self._segments = {
            "sequence": np.arange(batch.num_draws, dtype=np.int64),
            "group": batch.keys("group_id", "draw").astype(np.int64),
        }
        read = {self._loss.unit, *self._loss.streams}
        if "pair" in read:
            self._segments["pair"] = pairs_of(batch, self._valid)
            self._valid &= self._segments["pair"] >= 0
        self._dealt = self._segments[next((name for name in ("group", "pair") if name in read), "sequence")]
        self._sums: dict[str, Tensor] = {}
        self._stepped = 0

    def __len__(self) -> int:
        return self._epochs * min(self._minibatches, len(np.unique(self._dealt[self._valid])))

    def __iter__(self) -> Iterator[Update]:
        draws = np.flatnonzero(self._valid).astype(np.int64)
        _, first, place = np.unique(self._dealt[draws], return_index=True, return_inverse=True)
        parts = len(self) // self._epochs
        for epoch in range(self._epochs if parts else 0):
            base = np.uint64(_core.structural_seed(self._seed, epoch))
            order = np.argsort(_core.uniform(base + draws[first].astype(np.uint64), 0), kind="stable")
            for units in np.array_split(order, parts):
                yield Update(self, draws[np.isin(place, units)])

    def metrics(self) -> dict[str, float]:
        """As of `Updates`, without the model's name."""
        if not self._stepped:
            return {}
        sums = {name: float(value) for name, value in self._sums.items()}
        tokens = sums.pop("tokens", 0.0)
        means = {name: value / max(tokens, 1.0) for name, value in sums.items() if name != "loss"}
        return {"loss": sums["loss"] / self._stepped, **means, "tokens": tokens, "updates": float(self._stepped)}

    def _add(self, sums: dict[str, Tensor], *, first: bool) -> None:
        self._stepped += first
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    @property
    def _units(self) -> NDArray[np.int64] | None:
        """The unit of each draw that packs hold whole; None where any sequence may lie in any pack."""
        if self._loss.unit in ("token", "step"):  # a step lies in one sequence
            return None
        if self._loss.unit == "update":
            return np.zeros(self.batch.num_draws, dtype=np.int64)
        return self._segments["sequence" if self._loss.unit == "trajectory" else self._loss.unit]

    @functools.cached_property
    def _columns(self) -> dict[str, NDArray[np.float32]]:
        """The token columns that do not change from update to update, by stream or by what they do to streams."""
        made = {"inverse_temperature": "inverse_temperature"}
        for stream in self._loss.streams:
            if stream in _ADVANTAGES:
                made["advantage"] = "advantage"
            elif stream not in (*_IDS, "weight_kl", "weight_entropy"):
                made[stream] = self._loss.old_logprob_column if stream == "old_logprob" else stream
        optional = ("weight", "keep", "kl_weight", *(_ADVANTAGES if "advantage" in made else ()))
        made |= {name: name for name in optional if self.batch.has(name, "token")}
        return {key: np.asarray(self.batch.column(name, "token"), np.float32) for key, name in made.items()}

    @functools.cached_property
    def _ids(self) -> dict[str, NDArray[Any]]:
        """Of every token the segments that the loss reads."""
        steps = np.repeat(
            np.arange(len(self.batch.offsets("token")) - 1, dtype=np.int64), np.diff(self.batch.offsets("token"))
        )
        draw = np.repeat(self._segments["sequence"], np.diff(self.batch.offsets("step")))[steps]
        found = {"step": steps} | {name: ids[draw] for name, ids in self._segments.items()}
        if "stratum" in self._loss.streams:
            found["stratum"] = self.batch.column("stratum", "token")
        return {name: found[name] for name in _IDS if name in self._loss.streams}


class Update:
    """One optimizer step: its draws, its denominators, its packs and its loss.

    Attributes:
        draws: `int64[k]`, indices of the draws it trains on.
        model: name of the model that it steps, `policy` unless the recipe names another.
    """

    def __init__(self, updates: _Steps, draws: NDArray[np.int64]) -> None:
        self.draws = draws
        self.model = updates.model
        self._updates = updates
        self._loss: Loss = updates._loss  # noqa: SLF001 - two halves of one thing
        self._seen = False

    @overload
    def pack(
        self,
        *,
        max_tokens: int,
        layout: Layout = ...,
        shards: None = None,
        balance: Balance = ...,
        buffers: PackBuffers | None = ...,
    ) -> Iterator[Pack]: ...

    @overload
    def pack(
        self,
        *,
        max_tokens: int,
        layout: Layout = ...,
        shards: int,
        balance: Balance = ...,
        buffers: PackBuffers | None = ...,
    ) -> list[Iterator[Pack]]: ...

    def pack(
        self,
        *,
        max_tokens: int,
        layout: Layout = "sequence",
        shards: int | None = None,
        balance: Balance = "tokens",
        buffers: PackBuffers | None = None,
    ) -> Iterator[Pack] | list[Iterator[Pack]]:
        """The packs of this step: at most `max_tokens` tokens each, every unit of the loss whole in one pack.

        The denominators of the whole step are in the weights, so the losses of the packs add up to that of the step.
        Where a loss has statistics over all rows (its `unit` is the update), one pack has to hold them all; `together`
        takes packs of any size. There are prediction pairs for the tokens that have weight in this step, and for no
        others.

        In the layout `tree` the tokens that draws share are run once; a tree that is too long for one pack is cut
        where its branches part, and each piece repeats the beginning that its branches share. If the loss is
        `foldable`, a token that several draws train is one pair, in one pack: its advantages and weights are summed
        over the draws. That needs all else that the loss reads to be the same on them, bit for bit, else there is one
        pair for each draw, on the same row.

        Args:
            max_tokens: tokens of a pack; at least those of the longest sequence up to its last trained token, or, where
                the loss's `unit` is a trajectory, pair, group or the update, those of all its sequences together.
            layout: `sequence`: each sequence stands for itself; `tree`: what sequences share is there once.
            shards: number of ranks that run packs at the same time. Each rank gets as many packs as the others, those
                of one round about equally expensive, and each rank works out the same. Where a round has fewer units
                than ranks, a rank gets a pack without pairs (of one token, so that the model runs), whose loss is 0.
                None: one rank.
            balance: what a row costs. `tokens`: all the same. `work`: 1 + (position + 1) / 24 576, for attention to
                what is before it; that is its share of the operations of a model of width 4096, 4 h c / 24 h^2.
            buffers: memory that the packs are written into; a pack is valid until the next one is asked for. None: new
                memory for each.

        Returns:
            The packs in turn, each made when it is asked for; with `shards` a list of such, one for each rank.

        Raises:
            InvalidInputError: no such option, a sequence or unit is longer than `max_tokens`, or a value of a trained
                token is not finite.

        Example:
            One of two ranks; all ranks do as many rounds:

            >>> import agentrl_core as arl
            >>> from agentrl_core import recipes
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> for member, reward in enumerate([1.0, 0.0, 0.0]):
            ...     trajectory = forest.start(0, member=member)
            ...     _ = forest.append(trajectory, [1, 2], kind="prompt")
            ...     _ = forest.append(trajectory, [3 + member, 9], kind="action", logprobs=[-0.5, -0.1])
            ...     forest.finish(trajectory, reward=reward)
            >>> batch = recipes.GRPO.credit(forest.freeze())
            >>> (update,) = recipes.GRPO.updates(batch)
            >>> ranks = update.pack(max_tokens=8, layout="tree", shards=2)
            >>> [[len(pack.input_ids) for pack in packs] for packs in ranks]
            [[4], [3]]
        """
        plan, streams = self._plan(max_tokens, layout, shards, balance, units=self._updates._units)  # noqa: SLF001
        if shards is None:
            return self._packs(plan, range(len(plan)), streams, buffers)
        return [self._packs(plan, range(rank, len(plan), shards), streams, buffers) for rank in range(shards)]

    def together(
        self,
        model: nn.Module | Callable[[Pack], PackOutput],
        *,
        max_tokens: int,
        layout: Layout = "sequence",
        balance: Balance = "tokens",
        buffers: PackBuffers | None = None,
        group: distributed.ProcessGroup | None = None,
    ) -> Iterator[Tensor]:
        """The loss of this step over all its packs together: exact for every loss, in packs of any size.

        Every pack is run without gradients, the loss is evaluated once on all rows, and every pack is run again with
        the derivatives of that loss by its log-probs, entropies and answers. So statistics over all rows (quantiles,
        moments, BAPO's bounds) are those of the step, and a pair, group or trajectory may go over several packs. That
        costs one more forward pass than `pack` and `loss`, which are as exact where packs hold the loss's `unit` whole;
        a step that fits in one pack is run once. In both runs torch draws the same random numbers for a pack (dropout).

        Rows are taken in the order of their tokens, whatever the layout and the packs. `Updates.metrics` has the
        metrics of the whole step.

        Args:
            model: what `Pack.run` takes; or a function of a pack that returns a `PackOutput`, the same in both runs.
            max_tokens: tokens of a pack; at least those of the longest sequence up to its last trained token.
            layout: as of `pack`.
            balance: as of `pack`.
            buffers: as of `pack`.
            group: processes that make this step together (torch.distributed), each with its own packs. The loss and its
                metrics are of the rows of all, the gradients of each process are those of its packs: they add up. None:
                this process alone.

        Returns:
            A number for each pack in turn, to call `backward` on before the next is asked for; together they are the
            loss, to which a pack contributes as the weights of its rows do.

        Raises:
            InvalidInputError: no such option, a sequence is longer than `max_tokens`, a value of a trained token is not
                finite, or the function returned something else.

        Example:
            Clip-Cov compares each token with the means of all. Packs of four tokens, with a model that says what the
            one before it said:

            >>> import torch
            >>> import agentrl_core as arl
            >>> from agentrl_core import loss, recipes
            >>> from agentrl_core.model.pack import PackOutput
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> for member, reward in enumerate([1.0, 0.0, 0.0]):
            ...     trajectory = forest.start(0, member=member)
            ...     _ = forest.append(trajectory, [1, 2], kind="prompt")
            ...     _ = forest.append(trajectory, [3 + member, 9], kind="action", logprobs=[-0.5, -0.1])
            ...     forest.finish(trajectory, reward=reward)
            >>> recipe = recipes.GRPO.replace(loss=loss.Policy(mask=loss.CovarianceMask()))
            >>> (update,) = recipe.updates(recipe.credit(forest.freeze()))
            >>> shift = torch.zeros(1, requires_grad=True)
            >>> def model(pack):
            ...     logprob = pack.streams.old_logprob + shift
            ...     return PackOutput(logprob, entropy=-logprob)
            >>> for value in update.together(model, max_tokens=4):
            ...     value.backward()
            >>> abs(shift.grad.item()) < 1e-6  # the advantages of a group add up to 0
            True
        """
        rank, shards = (0, None) if group is None else (group.rank(), group.size())
        plan, streams = self._plan(max_tokens, layout, shards, balance, units=None)
        indices = range(rank, len(plan), shards or 1)
        return self._together(model, lambda: self._packs(plan, indices, streams, buffers), len(plan), group)

    def _together(
        self,
        model: nn.Module | Callable[[Pack], PackOutput],
        packs: Callable[[], Iterator[Pack]],
        count: int,
        group: distributed.ProcessGroup | None,
    ) -> Iterator[Tensor]:
        from agentrl_core.update.together import Together

        together = Together(self._loss, self._updates._ids, model, group)  # noqa: SLF001 - two halves of one thing
        if count == 1:
            yield self._record(*together.once(next(packs())))
        elif count:
            self._record(*together.first(packs()))
            yield from together.second(packs())

    def _plan(
        self, max_tokens: int, layout: Layout, shards: int | None, balance: Balance, *, units: NDArray[np.int64] | None
    ) -> tuple[Plan, dict[str, NDArray[Any]]]:
        """Which sequences lie in which pack, and the streams of all tokens."""
        updates = self._updates
        batch, columns = updates.batch, updates._columns  # noqa: SLF001 - two halves of one thing
        weight: NDArray[np.float64] = batch.token_weights(
            self.draws,
            denominator=self._loss.denominator,
            constant=self._loss.denominator_constant,
            shared=updates.recipe.shared,
            valid=updates._valid,  # noqa: SLF001
            keep=columns["keep"] != 0 if "keep" in columns else None,
        )
        self._refuse_unknown(weight)
        streams = self._streams(weight)
        folds = layout == "tree" and self._loss.foldable and not updates._ids  # noqa: SLF001
        plan = batch._plan(  # noqa: SLF001
            self.draws,
            max_tokens,
            layout=layout,
            unit_of=units,
            trained=weight > 0,
            fold=[values for name, values in streams.items() if name not in _SUMMED] if folds else None,
            shards=shards,
            balance=balance,
        )
        return plan, streams

    def _packs(
        self, plan: Plan, indices: Iterable[int], streams: dict[str, NDArray[Any]], buffers: PackBuffers | None
    ) -> Iterator[Pack]:
        from agentrl_core.model.buffers import PackBuffers
        from agentrl_core.model.pack import Pack

        if not (buffers is None or isinstance(buffers, PackBuffers)):
            raise InvalidInputError(f"buffers is of type {type(buffers).__name__}; give a PackBuffers, or None")
        take = _new if buffers is None else buffers.take
        for index in indices:
            if buffers is not None:
                buffers.next()
            planned = plan.pack(index, take)
            pairs = len(planned.token)
            taken = {name: take(f"stream {name}", pairs, np.float32) for name in streams}
            filled = [(values, taken[name]) for name, values in streams.items() if name in _SUMMED]
            first = [(values, taken[name]) for name, values in streams.items() if name not in _SUMMED]
            _core.pair_streams(filled, first, planned.pair_offsets, planned.pair_tokens)
            for name, ids in self._updates._ids.items():  # noqa: SLF001
                taken[name] = take(f"stream {name}", pairs, np.int64)
                taken[name][:] = np.unique(ids[planned.token], return_inverse=True)[1]
            yield Pack.from_plan(
                planned, taken, entropy_gradient=self._loss.needs_entropy_gradient, answers=self._loss.answers
            )

    def _streams(self, weight: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The float streams of all tokens: float64 what is summed over branches, else float32."""
        columns = self._updates._columns  # noqa: SLF001
        made: dict[str, NDArray[Any]] = {
            "inverse_temperature": columns["inverse_temperature"],
            "weight_kl": weight * columns.get("kl_weight", 1.0),
            "weight_entropy": weight,
        }
        if "advantage" in columns:
            factor = weight * columns.get("weight", 1.0)
            # Two advantages of one token (a gain and a loss that are clipped apart), or the two signs of one.
            first = columns.get("advantage_positive", columns["advantage"].clip(min=0.0)) * factor
            second = columns.get("advantage_negative", columns["advantage"].clip(max=0.0)) * factor
            made["advantage_positive"] = first.clip(min=0.0) + second.clip(min=0.0)
            made["advantage_negative"] = first.clip(max=0.0) + second.clip(max=0.0)
        read = (name for name in self._loss.streams if name not in _IDS)
        made = {**columns, **made}
        return {name: made[name] for name in ("inverse_temperature", "weight_kl", *read)}

    def loss(self, outputs: PackOutput, pack: Pack) -> Tensor:
        """The loss of a pack, a scalar to call `backward` on. Its metrics go to `Updates.metrics`.

        Args:
            outputs: what `pack.run(model)` or `loss.fused` returned.
            pack: the pack.

        Raises:
            InvalidInputError: they are something else, such as one in place of the other.
        """
        from agentrl_core.model.pack import Pack, PackOutput

        for name, value, kind in (("outputs", outputs, PackOutput), ("pack", pack, Pack)):
            if not isinstance(value, kind):
                raise InvalidInputError(
                    f"{name} is of type {type(value).__name__}; call update.loss(pack.run(model), pack)"
                )
        return self._record(*self._loss(outputs, pack))

    def _record(self, value: Tensor, sums: dict[str, Tensor]) -> Tensor:
        self._updates._add({"loss": value.detach(), **sums}, first=not self._seen)  # noqa: SLF001
        self._seen = True
        return value

    def _refuse_unknown(self, weight: NDArray[np.float64]) -> None:
        names = {"old_logprob": self._loss.old_logprob_column}
        for key, values in self._updates._columns.items():  # noqa: SLF001
            unknown = np.flatnonzero((weight > 0) & ~np.isfinite(values))
            if len(unknown):
                raise InvalidInputError(
                    f"column {names.get(key, key)!r} is {values[unknown[0]]} at token {unknown[0]}, which is trained "
                    f"({len(unknown)} such tokens); mark these tokens as not trainable, or give them a value "
                    "(batch.annotate for log-probs)"
                )


def _new(_name: str, length: int, dtype: Any) -> NDArray[Any]:
    return np.empty(length, dtype)
