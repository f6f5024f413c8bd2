"""Run a model on packs one after the other, on one process or distributed over ranks, and collect its outputs."""

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
    """Packs to run a model on, and functions that store its outputs and return the annotated batch.

    Attributes:
        packs: makes the packs one after the other.
        keep: stores the output for a pack, by the number of the pack.
        annotated: returns the batch with the columns of all outputs.
    """

    packs: Iterator[Asked]
    keep: Callable[[int, Any], None]
    annotated: Callable[[], Batch]


def run_on_packs(
    planned: Callable[[], Questions[Asked]],
    answer: Callable[[Asked], Any],
    group: Group | None,
    received: Callable[[Asked], Asked],
) -> Batch | None:
    """Run a model on all packs and return the annotated batch; None on other ranks than the first.

    All ranks run equally many packs, since wrappers of models wait for each other: the last pack may be repeated.

    Args:
        planned: plans the packs; called on the first rank alone.
        answer: returns the model's output for a pack.
        group: the ranks that share the packs, or None.
        received: prepares a pack that was received from the first rank.
    """
    if group is None:
        questions = planned()
        for number, pack in enumerate(questions.packs):
            questions.keep(number, answer(pack))
        return questions.annotated()
    plans, packs, ranks = list[Questions[Asked]](), list[Asked](), group.size()

    def numbers(rank: int) -> range:
        return range(rank, -(-len(packs) // ranks) * ranks, ranks)

    def part(rank: int) -> list[Asked]:
        return [packs[min(number, len(packs) - 1)] for number in numbers(rank)]

    def parts() -> Iterator[list[Asked]]:
        plans.append(planned())
        packs.extend(plans[0].packs)
        yield []
        yield from map(part, range(1, ranks))

    received_packs = parts_of_first(parts, group)
    answers = [answer(pack) for pack in (part(0) if plans else map(received, received_packs))]
    for rank, answers_of_rank in enumerate(gathered_on_first(answers, group)):
        for number, values in zip(numbers(rank), answers_of_rank, strict=True):
            if number < len(packs):
                plans[0].keep(number, values)
    return plans[0].annotated() if plans else None
