"""One optimizer step with its packs and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.lazy_torch import require_torch, torch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.recorded_routes import RecordedRoutes, routed_rows

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from transformers import ProcessorMixin

    from agentrl_core.data.batch import Balance
    from agentrl_core.model.buffers import PackBuffers
    from agentrl_core.model.layouts import PackLayout
    from agentrl_core.model.pack import Pack, PackOutput
    from agentrl_core.model.ranks import GradientSync, Group
    from agentrl_core.update.metrics import Metrics
    from agentrl_core.update.packs import PackMaker, Packs
    from agentrl_core.update.prepared_batch import PreparedBatch, PreparedElsewhere


class Update:
    """One optimizer step: its draws, its denominators, its packs and its loss.

    Attributes:
        draws: `int64[k]`, indices of its draws; on other ranks than the first, empty until `pack`.
        model: name of the trained model, `policy` unless the recipe names another.
        prepared: data shared with the other steps of its loss.

    The argument `step` is a function that steps an optimizer and clears the gradients subject to hooks, and returns
    whether it stepped; None: no hooks.
    """

    def __init__(
        self,
        prepared: PreparedBatch | PreparedElsewhere,
        draws: NDArray[np.int64],
        metrics: Metrics,
        step: Callable[[Update, Optimizer], bool] | None = None,
    ) -> None:
        self.draws = draws
        self.model = prepared.model
        self.prepared = prepared
        self._metrics = metrics
        self._step = step
        self._begun = False
        self._idle: int | None = None
        self._group = metrics.group
        self._packed_for: nn.Module | None = None

    @overload
    def pack(
        self,
        *,
        max_tokens: int,
        layout: PackLayout = ...,
        model: nn.Module | None = ...,
        processor: ProcessorMixin | None = ...,
        shards: None = None,
        balance: Balance = ...,
        buffers: PackBuffers | None = ...,
        sync: GradientSync = ...,
        replay_routes: bool = ...,
    ) -> Packs: ...

    @overload
    def pack(
        self,
        *,
        max_tokens: int,
        layout: PackLayout = ...,
        model: nn.Module | None = ...,
        processor: ProcessorMixin | None = ...,
        shards: int,
        balance: Balance = ...,
        buffers: PackBuffers | None = ...,
        sync: GradientSync = ...,
        replay_routes: bool = ...,
    ) -> list[Packs]: ...

    def pack(
        self,
        *,
        max_tokens: int,
        layout: PackLayout = "auto",
        model: nn.Module | None = None,
        processor: ProcessorMixin | None = None,
        shards: int | None = None,
        balance: Balance = "tokens",
        buffers: PackBuffers | None = None,
        sync: GradientSync = "auto",
        replay_routes: bool = False,
    ) -> Packs | list[Packs]:
        """Return the packs of this step, of at most `max_tokens` tokens. Each unit of the loss stays in one pack.

        On several ranks of torch.distributed, the first rank plans and makes all packs, by its options, and sends each
        rank its own: the same number to each, of about equal cost in each round. If there are fewer units than ranks, a
        rank gets packs of one token without pairs, with loss 0, so that its model runs too. With a wrapper that
        averages gradients over the ranks, the gradient is that of one process.

        The denominators of the whole step are in the weights, so the losses of the packs add up to that of the step. If
        a loss has statistics over all rows (its `unit` is the update), one pack must hold all; `gradient_cached` takes
        packs of any size. Only tokens with weight in this step have prediction pairs. If a loss depends on advantages
        alone (`Loss.by_advantage`: no penalty, no entropy term, no statistic over other draws), draws without advantage
        are skipped. The gradients are the same, and the denominators still count them. Metrics cover the tokens that
        were run; `idle_tokens` is the number of skipped ones.

        In the layout `tree`, equal prefixes are run once, whether they were sampled once or several times. A tree too
        long for one pack is cut at forks, and each piece repeats the shared prefix of its branches. If the loss is
        `foldable`, a token that several draws train is one pair, in one pack: its advantages and weights are summed
        over the draws. This requires all other inputs of the loss (such as the old log-prob) to be equal bit for bit;
        tokens that differ are separate pairs on the same row.

        Args:
            max_tokens: largest number of tokens of a pack; at least that of the longest sequence up to its last trained
                token or, if the loss's `unit` is a trajectory, pair, group or the update, of all sequences of a unit.
            layout: `tree`: shared prefixes occur once. `sequence`, `padded`: each sequence is complete; the model
                computes it without padding, or padded through its ordinary forward. `auto`: the first that `model`
                supports; without `model`, sequences, run in the layout that the model supports. Packs with images are
                padded.
            model: the model that will run the packs, bare or wrapped, for `layout="auto"` and `sync`.
            processor: converts images of the rollouts to inputs of the model. None: the one saved at
                `model.name_or_path`.
            shards: return a list with the packs of this many ranks, for ranks that torch.distributed does not connect;
                their gradients add up. None: the packs of this rank.
            balance: cost of a row. `tokens`: all equal. `work`: 1 + (position + 1) / 24 576, for attention to earlier
                tokens; that is its share of the operations of a model of width 4096, 4 h c / 24 h^2.
            buffers: memory for the packs; a pack is valid until the next one is requested. None: new memory for each.
            sync: in which backward passes the wrapper of `model` synchronises gradients: `last`, in that of the last
                pack alone; `each`, in that of each pack; `auto`: `each` if parameters are sharded (FSDP would keep the
                gradients of all parameters on each rank until the last pack), otherwise `last`. Call `backward` before
                you request the next pack.
            replay_routes: route each token to the experts that the engine recorded (column `routed_experts`), with
                weights from the router's own logits. A token without a record is routed by the model; metric
                `routed_tokens` is the share of trained tokens that were predicted from a token with a record. If
                several branches sampled the same token, the record of the first branch is used.

        Returns:
            An iterator over the packs, each created on request; `len` is their number. With `shards`, a list of
                iterators, one per rank.

        Raises:
            InvalidInputError: an option is unknown, a sequence or unit is longer than `max_tokens`, a value of a
                trained token is not finite, or `replay_routes` without recorded experts; on every rank.

        Example:
            Packs for two ranks; all ranks run as many:

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
        require_torch("a pack")
        from agentrl_core.model.ranks import check_sync
        from agentrl_core.update.packs import Packs

        check_sync(sync, model)
        if self._group is not None and shards is not None:
            raise InvalidInputError(
                f"shards={shards}, but {self._group.size()} ranks make this step; leave shards out: each rank gets its "
                "own packs"
            )
        if buffers is not None:
            _check_buffers(buffers)
        self._packed_for = model

        ranks = shards if self._group is None else self._group.size()

        def planned() -> PackMaker:
            return self._planned(max_tokens, layout, model, ranks, balance, processor, replay_routes=replay_routes)

        if self._group is not None:
            return Packs(*self._of_first(planned, buffers, processor), model, sync)
        maker = planned()
        each = [
            Packs(partial(maker.make, buffers=buffers), range(rank, len(maker), shards or 1), model, sync)
            for rank in range(shards or 1)
        ]
        return each[0] if shards is None else each

    def gradient_cached(
        self,
        model: nn.Module | Callable[[Pack], PackOutput],
        *,
        max_tokens: int,
        layout: PackLayout = "auto",
        processor: ProcessorMixin | None = None,
        balance: Balance = "tokens",
        buffers: PackBuffers | None = None,
        sync: GradientSync = "auto",
        replay_routes: bool = False,
    ) -> Iterator[Tensor]:
        """Return the loss of this step over all its packs: exact for every loss, in packs of any size.

        Gradient caching: every pack is run without gradients, the loss is evaluated once on all rows, and every pack is
        run again with the gradients of that loss by its outputs (log-probs, entropies). So statistics over all rows
        (quantiles, moments, BAPO's bounds) are those of the step, and a pair, group or trajectory may span several
        packs. This costs one more forward pass than `pack` and `loss`, which are also exact if packs hold each `unit`
        of the loss whole. A step that fits in one pack is run once. Both runs of a pack use the same random numbers
        (dropout).

        Rows are in the order of their tokens, for any layout and packs. `Updates.metrics` has the metrics of the whole
        step. On several ranks the loss covers the rows of all ranks, and each rank has the gradients of its own packs.

        Args:
            model: a model, as in `Pack.run`; or a function from a pack to a `PackOutput`, the same in both runs.
            max_tokens: largest number of tokens of a pack; at least that of the longest sequence up to its last trained
                token.
            layout: as of `pack`; a function gets sequences for `auto`.
            processor: as of `pack`.
            balance: as of `pack`.
            buffers: as of `pack`.
            sync: as of `pack`, if `model` is a module.
            replay_routes: as of `pack`, in both runs of a pack.

        Returns:
            An iterator over one scalar per pack; call `backward` on each before you request the next. Their sum is the
                loss, to which each pack contributes in proportion to the weights of its rows.

        Raises:
            InvalidInputError: an option is unknown, a sequence is longer than `max_tokens`, a value of a trained token
                is not finite, the function returned another type, or `replay_routes` without recorded experts.

        Example:
            Clip-Cov compares each token with the means of all. Packs of four tokens, with a model whose outputs equal
                the old log-probs:

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
            >>> for value in update.gradient_cached(model, max_tokens=4):
            ...     value.backward()
            >>> abs(shift.grad.item()) < 1e-6  # the advantages of a group add up to 0
            True
        """
        require_torch("a pack")
        from agentrl_core.model.ranks import check_sync
        from agentrl_core.update.packs import Packs

        module = None if not isinstance(model, torch.nn.Module) else model
        check_sync(sync, module)
        if buffers is not None:
            _check_buffers(buffers)
        self._packed_for = module

        ranks = None if self._group is None else self._group.size()

        def planned() -> PackMaker:
            options = {"replay_routes": replay_routes, "in_one_pack": False}
            return self._planned(max_tokens, layout, module, ranks, balance, processor, **options)

        if self._group is None:
            maker = planned()
            make: Callable[[int], Pack] = partial(maker.make, buffers=buffers)
            indices = range(len(maker))
        else:
            make, indices = self._of_first(planned, buffers, processor)
        return self._together(model, lambda: Packs(make, indices, module, sync), len(indices))

    def _together(
        self, model: nn.Module | Callable[[Pack], PackOutput], packs: Callable[[], Packs], count: int
    ) -> Iterator[Tensor]:
        from agentrl_core.update.gradient_cache import GradientCache

        cache = GradientCache(self.prepared.loss, model, self._group)
        if count == 1 and self._group is None:
            yield self._record(*cache.in_one_pack(next(packs())))
        elif count:
            self._record(*cache.evaluate(packs()), of_all=True)
            for value, outputs in cache.parts(packs()):
                yield self._of_ranks(value, cache.ranks, outputs.values())

    def _of_first(
        self, planned: Callable[[], PackMaker], buffers: PackBuffers | None, processor: ProcessorMixin | None
    ) -> tuple[Callable[[int], Pack], range]:
        """Plan packs on the first rank, and send other ranks theirs.

        Returns:
            A function that creates a pack of this rank by its index, and the indices.
        """
        from agentrl_core.model.collectives import parts_of_first
        from agentrl_core.update.packs import received

        group = cast("Group", self._group)
        ranks: int = group.size()
        makers: list[PackMaker] = []

        def parts() -> Iterator[tuple[NDArray[np.int64], list[Pack]]]:
            makers.append(planned())
            yield self.draws, []  # this rank makes its packs on request
            for rank in range(1, ranks):
                yield self.draws, [makers[0].make(at) for at in range(rank, len(makers[0]), ranks)]

        self.draws, packs = parts_of_first(parts, group)
        if makers:
            return partial(makers[0].make, buffers=buffers), range(0, len(makers[0]), ranks)
        return (lambda place: received(packs[place], buffers, processor)), range(len(packs))

    def _planned(
        self,
        max_tokens: int,
        layout: PackLayout,
        model: nn.Module | None,
        ranks: int | None,
        balance: Balance,
        processor: ProcessorMixin | None,
        *,
        replay_routes: bool,
        in_one_pack: bool = True,
    ) -> PackMaker:
        """Plan the packs; units of the loss stay in one pack if the loss is evaluated pack by pack."""
        from agentrl_core.model.layouts import check_layout, layout_of, refuse_images_in
        from agentrl_core.update.packs import PackMaker

        check_layout(layout)
        prepared = cast("PreparedBatch", self.prepared)
        shows = prepared.shows_images(self.draws)
        if shows:
            refuse_images_in(layout)
        tree = not shows and (
            layout == "tree" or (layout == "auto" and model is not None and layout_of(model) == "tree")
        )
        weights, shares = prepared.weights(self.draws)
        same = {**prepared.same, **shares}
        trained = weights > 0
        if prepared.idle is not None:
            run = trained & ~prepared.idle
            # A step without gradients must have zeros, since an optimizer with momentum would differ.
            if run.any():
                self._idle = int(trained.sum() - run.sum())
                trained = run
        plan = prepared.batch.plan(
            self.draws,
            max_tokens,
            layout="tree" if tree else "sequence",
            unit_of=prepared.units if in_one_pack else None,
            trained=trained,
            fold=list(same.values()) if tree and prepared.foldable else None,
            shards=ranks,
            balance=balance,
        )
        return PackMaker(
            plan,
            prepared,
            weights,
            same,
            layout,
            processor=processor,
            shows_images=shows,
            routes=RecordedRoutes(prepared.batch) if replay_routes else None,
            numbered_twice=not in_one_pack,
        )

    def loss(self, outputs: PackOutput, pack: Pack) -> Tensor:
        """Return the loss of a pack, a scalar to call `backward` on. Its metrics go to `Updates.metrics`.

        On several ranks, it is multiplied by the number of ranks over which the model's wrapper averages gradients.

        Args:
            outputs: output of `pack.run(model)` or `loss.fused`.
            pack: the pack.

        Raises:
            InvalidInputError: an argument has another type, such as both swapped.
        """
        from agentrl_core.model.pack import Pack, PackOutput

        for name, argument, kind in (("outputs", outputs, PackOutput), ("pack", pack, Pack)):
            if not isinstance(argument, kind):
                raise InvalidInputError(
                    f"{name} is of type {type(argument).__name__}; call update.loss(pack.run(model), pack)"
                )
        value, sums = self.prepared.loss(outputs, pack)
        routed = None if pack.routed_experts is None else routed_rows(pack)
        total = self._record(value, sums if routed is None else {**sums, "routed_tokens": routed.sum()})
        return self._of_ranks(total, outputs.ranks, vars(outputs).values())

    def _of_ranks(self, value: Tensor, ranks: int | None, outputs: Iterable[object]) -> Tensor:
        """Scale the loss of a pack to the number of ranks over which the model's wrapper averages gradients."""
        if self._group is None:
            return value
        from agentrl_core.update.rank_scaling import scaled_to_ranks

        return scaled_to_ranks(value, self._group, ranks, self._packed_for, outputs)

    def step(self, optimizer: Optimizer) -> bool:
        """Step an optimizer and clear the gradients: `optimizer.step(); optimizer.zero_grad()`, subject to hooks.

        Hooks of the recipe may skip the step (`schedule.SkipStep`) or scale its learning rate
        (`recipes.vcpo.ScaleLearningRate`).

        Returns:
            Whether the optimizer was stepped.
        """
        if self._step is not None:
            return self._step(self, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        return True

    def metrics(self) -> dict[str, float]:
        """Mean metrics of this step's losses so far; models other than `policy` have their name as prefix.

        Reading them waits for the device. On several ranks they are the metrics of all ranks, so every rank must read
        them.
        """
        return named_metrics(self.model, self._metrics.step()) if self._begun else {}

    def _record(self, value: Tensor, sums: dict[str, Tensor], *, of_all: bool = False) -> Tensor:
        """Record the metrics of a pack; with `of_all`, of all rows, which every rank has."""
        is_first = self._group is None or self._group.rank() == 0
        if not self._begun:
            self._metrics.begin_update()
            self._begun = True
            if self._idle is not None and is_first:
                sums = {**sums, "idle_tokens": sums["tokens"].new_tensor(self._idle)}
        counts = is_first or not of_all
        self._metrics.add({"loss": value.detach(), **sums} if counts else {"loss": torch.zeros_like(value.detach())})
        return value


def _check_buffers(buffers: object) -> None:
    from agentrl_core.model.buffers import PackBuffers

    if not isinstance(buffers, PackBuffers):
        raise InvalidInputError(f"buffers is of type {type(buffers).__name__}; give a PackBuffers, or None")


def named_metrics(model: str, metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a model, with its name as prefix if it is not the policy."""
    return metrics if model == "policy" else {f"{model}.{name}": value for name, value in metrics.items()}
