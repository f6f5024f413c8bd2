"""Inputs of a loss: the prediction pairs of a pack as `[N]` vectors, and sums over their segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) is 5e8: a larger ratio carries no information, and in fp32 would soon overflow
_MOST_SEGMENTS = 2**31  # no sequence has a segment of this number
SOURCE = "source"  # the stream with the codes of the draws' sources, where they have several
WEIGHTED = ("advantage_positive", "advantage_negative", "weight_kl", "weight_entropy")
"""The streams that are products with the loss weight of a row."""
_LOWEST_LOGPROB = -1e4  # replaces -inf: a token that sampling excludes then has no gradient, and no NaN

SegmentKind = Literal["all", "group", "pair", "sequence", "step"]
"""Kind of a segment: all tokens given, or the rows with the same id in the stream of that name."""


class Tokens:
    """The prediction pairs of a loss: log-probs, entropies and streams, one row each.

    Rows with weight 0, and log-probs of -inf, contribute neither to the loss nor to its gradient.

    Args:
        logprob: `[N]`, log-prob of each target under the trained policy, with gradient.
        entropy: `[N]`, entropy in nats; None if the loss reads none.
        streams: `[N]` each. `weight_kl` is always needed: the weight of each row, its denominators included.
            `advantage_positive` and `advantage_negative` are weight times max(A, 0) and min(A, 0), summed over the
            branches that share the row. Segment ids (`step`, `sequence`, `group`, `pair`) are whole numbers from 0,
            without gaps, so that there are at most N of each.
        outputs: further outputs of the model by name, such as `value`: an object whose attributes they are.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> streams = {"weight_kl": torch.ones(3), "sequence": torch.tensor([0, 0, 1])}
        >>> tokens = Tokens(torch.tensor([-1.0, -2.0, -4.0]), None, streams)
        >>> tokens.segments("sequence").mean(tokens.logprob).tolist()
        [-1.5, -4.0, 0.0]
    """

    def __init__(
        self, logprob: Tensor, entropy: Tensor | None, streams: Mapping[str, Tensor], outputs: object = None
    ) -> None:
        self._streams = streams
        self._answers = outputs
        self.weight = self.raw("weight_kl")
        self.trained = self.weight > 0
        self.logprob = torch.where(self.trained, logprob, 0.0).clamp(min=_LOWEST_LOGPROB)
        self._entropy = entropy
        self._known: dict[str, Tensor] = {}
        self._segments: dict[str, Segments] = {}

    def raw(self, name: str) -> Tensor:
        """Return a stream unchanged.

        Raises:
            InvalidInputError: there is no such stream.
        """
        try:
            return self._streams[name]
        except KeyError:
            known = ", ".join(self._streams) or "none"
            raise InvalidInputError(
                f"the pack has no stream {name!r}, which the loss reads (it has: {known}); declare it in needs of the "
                "loss, and take the pack from an update of this loss"
            ) from None

    def stream(self, name: str) -> Tensor:
        """Return a stream, `[N]` or `[N, k]`, with 0 in untrained rows.

        A token without an old log-prob (NaN in `old_logprob`) gets its current log-prob, detached: its ratio is 1, with
        the gradient of log p.
        """
        if name not in self._known:  # no functools: its locks stop torch.compile
            values = self._where_trained(self.raw(name))
            if name == "old_logprob":
                values = torch.where(values.isnan(), self.logprob.detach(), values)
            self._known[name] = values
        return self._known[name]

    def _where_trained(self, values: Tensor) -> Tensor:
        return torch.where(self.trained if values.dim() == 1 else self.trained[:, None], values, 0)

    def of_share(self, name: str) -> Tokens:
        """Return the rows with their weights multiplied by a stream; rows with share 0 are not trained."""
        share = self.raw(name)
        streams = {key: value * share if key in WEIGHTED else value for key, value in self._streams.items()}
        return Tokens(self.logprob, self._entropy, streams, self._answers)

    @property
    def sources(self) -> list[tuple[str, Tensor]]:
        """The source names, each with a mask of its rows; empty if all rows are from one source."""
        if SOURCE not in self._streams:
            return []
        codes = self.raw(SOURCE)
        return [(name, codes == code) for code, name in enumerate(CODES["source"])]

    @property
    def compared(self) -> Tensor:
        """Return a mask of trained rows that have an old log-prob, and so a ratio."""
        return self.trained & ~self.raw("old_logprob").isnan()

    def output(self, name: str) -> Tensor:
        """Return the model's output `name`, `[N]` or `[N, k]`, with 0 in untrained rows.

        Raises:
            UnsupportedError: the model has no such output.
        """
        value = getattr(self._answers, name, None)
        if value is None:
            raise UnsupportedError(
                f"the loss needs output {name!r}, which these outputs of the model lack; set outputs.{name}, or run "
                "the pack with pack.run(model), which sets the outputs that the loss declares"
            )
        return self._where_trained(value)

    @property
    def entropy(self) -> Tensor:
        """Entropy of each row, 0 in untrained rows."""
        return torch.zeros_like(self.logprob) if self._entropy is None else torch.where(self.trained, self._entropy, 0)

    @property
    def advantage_positive(self) -> Tensor:
        """Weight times the positive part of the advantage."""
        return self.stream("advantage_positive")

    @property
    def advantage_negative(self) -> Tensor:
        """Weight times the negative part of the advantage."""
        return self.stream("advantage_negative")

    @property
    def advantage(self) -> Tensor:
        """The advantage without its weight; if several branches share a row, their weighted mean."""
        return (self.advantage_positive + self.advantage_negative) / torch.where(self.trained, self.weight, 1.0)

    def log_ratio_to(self, name: str) -> Tensor:
        """Return the log-ratio to the policy whose log-probs a stream has, limited to +-20."""
        return self.limited(self.logprob - self.stream(name))

    @staticmethod
    def limited(log_ratio: Tensor) -> Tensor:
        """Return a log-ratio limited to +-20, beyond which a ratio carries no information."""
        return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    @property
    def log_ratio(self) -> Tensor:
        """The log-ratio to the old policy, limited to +-20."""
        return self.log_ratio_to("old_logprob")

    def segments(self, level: SegmentKind) -> Segments:
        """Return the trained rows, divided into segments of a kind."""
        if level not in self._segments:
            ids = torch.zeros_like(self.trained, dtype=torch.int64) if level == "all" else self.raw(level).long()
            self._segments[level] = Segments(ids, self.trained, level)
        return self._segments[level]

    @property
    def strata(self) -> Segments:
        """The trained rows, divided by the stream `stratum`."""
        return Segments(self.raw("stratum").long(), self.trained, "stratum")

    @property
    def items(self) -> Segments:
        """The trained rows, divided by sequence and by the stream `item`, from 1; a row with item 0 is alone."""
        number = self.raw("item").long()
        rows = torch.arange(len(number), device=number.device)
        # One key for each item, in the order of sequences; rows without an item come after all numbers.
        inside = torch.where(number < 1, _MOST_SEGMENTS + rows, number)
        order = inside.argsort(stable=True)
        order = order[self.raw("sequence").long()[order].argsort(stable=True)]
        sequence, inside = self.raw("sequence").long()[order], inside[order]
        begins = (sequence != sequence.roll(1)) | (inside != inside.roll(1))
        ids = torch.zeros_like(rows).scatter(0, order, (begins & (rows > 0)).long().cumsum(0))
        return Segments(ids, self.trained, "item")

    def members(self, level: Literal["pair", "group"]) -> Segments:
        """Return sequences, divided by pair or group: row i of the ids is sequence i, not token i."""
        sequences = self.segments("sequence")
        ids = torch.zeros_like(sequences.ids).scatter(0, sequences.ids, self.segments(level).ids)
        return Segments(ids, sequences.exists, level)


class Segments:
    """Rows divided into segments. Values per segment are vectors of length N, so that no device synchronises.

    Args:
        ids: `int64[N]`, the segment of each row.
        counted: `bool[N]`, the rows to include in statistics.
        name: name of the ids in error messages.

    Attributes:
        count: `float64[N]`, number of counted rows in each segment.
    """

    def __init__(self, ids: Tensor, counted: Tensor, name: str) -> None:
        readable = ids.device.type == "cpu" and not torch.compiler.is_compiling()  # other devices would synchronise
        if readable and len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(ids)):
            raise InvalidInputError(
                f"{name} ids range from {int(ids.min())} to {int(ids.max())} for {len(ids)} rows; number them from 0, "
                "without gaps"
            )
        self.ids = ids
        self.counted = counted
        self.count = torch.zeros(len(ids), dtype=torch.float64, device=ids.device).index_add(0, ids, counted.double())

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the counted rows of each segment."""
        values = torch.where(self.counted, values, 0.0)
        return torch.zeros_like(values).index_add(0, self.ids, values)

    @property
    def exists(self) -> Tensor:
        """Mask of segments that have counted rows."""
        return self.count > 0

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the counted rows of each segment, 0 for an empty one."""
        return self.sum(values) / self.count.clamp(min=1).to(values.dtype)

    def maximum(self, values: Tensor) -> Tensor:
        """Return the largest value of each segment, without gradient, 0 for an empty one."""
        values = torch.where(self.counted, values.detach(), -torch.inf)
        largest = torch.full_like(values, -torch.inf).scatter_reduce(0, self.ids, values, "amax")
        return torch.where(self.exists, largest, 0.0)

    def spread(self, per_segment: Tensor) -> Tensor:
        """Return for each row the value of its segment."""
        return per_segment.index_select(0, self.ids)

    def log_sum_exp(self, values: Tensor) -> Tensor:
        """Return the logarithm of the sum of exponentials of each segment, 0 for an empty one."""
        largest = self.maximum(values)
        shifted = torch.where(self.counted, values - self.spread(largest), 0.0)
        return torch.where(self.exists, self.sum(shifted.exp()), 1.0).log() + largest

    def log_softmax(self, values: Tensor) -> Tensor:
        """Return the log-softmax of the values within each segment."""
        return torch.where(self.counted, values - self.spread(self.log_sum_exp(values)), 0.0)

    def rank(self, values: Tensor, *, descending: bool = False) -> Tensor:
        """Return the rank of each row among the counted rows of its segment, from 0, by value; ties by row order."""
        order = self._order(values.detach(), descending=descending)
        position = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
        return position - self.spread(self._starts)

    def quantile(self, values: Tensor, q: float, *, nearest: bool = False) -> Tensor:
        """Return the q-quantile of each segment, without gradient, by linear interpolation or the nearest value.

        Args:
            values: `[N]`.
            q: from 0 to 1.
            nearest: take the nearest value (of two equally near ones the even rank) instead of interpolating.
        """
        if not len(values):
            return values.detach()
        ordered = values.detach()[self._order(values.detach())]
        position = q * (self.count - 1).clamp(min=0)
        low = (position.round() if nearest else position.floor()).long()
        high = (low + 1).minimum((self.count - 1).clamp(min=0).long())
        last = len(values) - 1
        below, above = ((ordered[(self._starts + index).clamp(max=last)]) for index in (low, high))
        share = torch.zeros_like(position) if nearest else position - low
        return torch.where(self.exists, below + share.to(values.dtype) * (above - below), 0.0)

    def running_minimum(self, values: Tensor) -> Tensor:
        """Return the smallest counted value before each row in its segment, +inf for the first, without gradient."""
        order, ids = self._in_turn()
        values = values.detach()[order]
        smallest = torch.where(self._joined(ids, 1), values.roll(1), torch.inf)
        step = 1
        while step < len(values):  # doubling: after each round a row knows the last 2 * step rows
            before = torch.where(self._joined(ids, step), smallest.roll(step), torch.inf)
            smallest = torch.minimum(smallest, before)
            step *= 2
        return torch.empty_like(smallest).scatter(0, order, smallest)

    def rest_cross_entropy(self, values: Tensor, target: Tensor) -> Tensor:
        """Return each row's cross-entropy of two softmaxes, of values to targets, over the row and those ranked below.

        The counted rows of a segment are ranked by target; among equal targets the first row ranks higher. Targets have
        no gradient.
        """
        order = self._order(target.detach(), descending=True)
        turn = torch.arange(len(order), device=order.device)
        ids = torch.where(self.counted, self.ids, -1 - turn)[order]
        values, target = (torch.where(self.counted, each, 0.0)[order] for each in (values, target.detach()))
        total, mass, mean = values, target, values  # log-sums of both, and the mean of the values by Q
        step = 1
        while step < len(ids):  # doubling: after each round a row knows the next 2 * step rows
            joined = self._joined(ids, step).roll(-step)
            total = torch.where(joined, torch.logaddexp(total, total.roll(-step)), total)
            both = torch.where(joined, torch.logaddexp(mass, mass.roll(-step)), mass)
            other = (mass.roll(-step) - both).clamp(max=0.0).exp() * mean.roll(-step)
            mean = torch.where(joined, (mass - both).exp() * mean + other, mean)
            mass = both
            step *= 2
        return torch.zeros_like(total).scatter(0, order, torch.where(ids < 0, 0.0, total - mean))

    def following(self, values: Tensor) -> Tensor:
        """Return the value of the next counted row in the same segment, 0 for the last row."""
        order, ids = self._in_turn()
        after = torch.where(self._joined(ids, 1).roll(-1), values[order].roll(-1), 0.0)
        return torch.zeros_like(after).scatter(0, order, after)

    @staticmethod
    def _joined(ids: Tensor, distance: int) -> Tensor:
        """Return whether each row is in the same segment as the row `distance` before it."""
        inside = torch.arange(len(ids), device=ids.device) >= distance
        return inside & (ids == ids.roll(distance))

    def _in_turn(self) -> tuple[Tensor, Tensor]:
        """Return the rows ordered by segment, and the segment of each; uncounted rows have unique negative ids."""
        order = self._order(torch.zeros_like(self.ids))
        turn = torch.arange(len(order), device=order.device)
        return order, torch.where(self.counted, self.ids, -1 - turn)[order]

    @property
    def _starts(self) -> Tensor:
        """Position of the first row of each segment when the counted rows are ordered by segment."""
        return (self.count.cumsum(0) - self.count).long()

    def _order(self, values: Tensor, *, descending: bool = False) -> Tensor:
        """Return row indices ordered by segment, then by value; rows that do not count come last."""
        by_value = values.argsort(descending=descending, stable=True)
        keys = torch.where(self.counted, self.ids, len(self.ids))
        return by_value[keys[by_value].argsort(stable=True)]
