"""Ask a model about packs, one after the other, on one process or shared out to ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentrl_core.data.batch import Batch
from agentrl_core.model.collectives import gathered_on_first, parts_of_first
from agentrl_core.model.ranks import Group

Asked = TypeVar("Asked")


@dataclass(frozen=True, eq=False)
class Questions(Generic[Asked]):
    """The packs that a model is asked about, and what its answers are for.

    Attributes:
        count: number of packs.
        make: makes the pack of an index.
        keep: keeps the answer to the pack of an index.
        annotated: returns the batch with the columns of all answers.
    """

    count: int
    make: Callable[[int], Asked]
    keep: Callable[[int, Any], None]
    annotated: Callable[[], Batch]


def ask(
    planned: Callable[[], Questions[Asked]],
    answer: Callable[[Asked], Any],
    group: Group | None,
    received: Callable[[Asked], Asked],
) -> Batch | None:
    """Return the batch with the columns of all answers; None on other ranks than the first.

    All ranks are asked about as many packs, since wrappers of models wait for each other: the last one may be repeated.

    Args:
        planned: plans the packs; called on the first rank alone.
        answer: returns the model's answer to a pack.
        group: the ranks that share the packs, or None.
        received: makes a pack that the first rank sent ready.
    """
    if group is None:
        questions = planned()
        for at in range(questions.count):
            questions.keep(at, answer(questions.make(at)))
        return questions.annotated()
    own, ranks = list[Questions[Asked]](), group.size()

    def places(rank: int) -> range:
        return range(rank, -(-own[0].count // ranks) * ranks, ranks)

    def of_rank(rank: int) -> Iterator[Asked]:
        return (own[0].make(min(at, own[0].count - 1)) for at in places(rank))

    def parts() -> list[list[Asked]]:
        own.append(planned())
        return [list(of_rank(rank)) if rank else [] for rank in range(ranks)]

    sent = parts_of_first(parts, group)
    answers = [answer(pack) for pack in (of_rank(0) if own else map(received, sent))]
    for rank, found in enumerate(gathered_on_first(answers, group)):
        for at, values in zip(places(rank), found, strict=True):
            if at < own[0].count:
                own[0].keep(at, values)
    return own[0].annotated() if own else None
