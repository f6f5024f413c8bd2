"""Write a component of the phase reward: a bonus for correct answers that are short.

    python examples/own_component.py

docs/howto/component.md explains it. The new recipe is a value like any other: print it as TOML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import agentrl_core as arl
from agentrl_core import group, recipes
from agentrl_core.component import BatchComponent, Rows, draw, option


@dataclass(frozen=True)
class ShortBonus(BatchComponent):
    """Reward right answers more, the shorter they are among the answers of their group."""

    phase: ClassVar[str] = "reward"
    needs: ClassVar = (draw("score"),)  # trained_tokens is computed, and needs no column
    makes: ClassVar = (draw("score"),)

    coefficient: float = option(0.1, at_least=0)

    def __call__(self, batch: arl.Batch) -> arl.Batch:
        """Add the bonus to the score."""
        rows = Rows(batch, "draw")
        scores, lengths = rows.values("score"), rows.values("trained_tokens")
        rank = group.rank(lengths, batch.keys("group_id", "draw"), valid=rows.valid)
        return rows.write(score=scores + self.coefficient * (1.0 - rank) * (scores > 0.0))


def main() -> None:
    forest = arl.Forest()
    forest.add_group(0, "a sum")
    for member, (answer, reward) in enumerate([([7], 1.0), ([7, 8, 9], 1.0), ([1], 0.0)]):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, answer, kind="action", logprobs=[-0.5] * len(answer))
        forest.finish(trajectory, reward=reward)
    batch = forest.freeze()
    recipe = recipes.GRPO.replace(reward=(recipes.GRPO.reward, ShortBonus(coefficient=0.2)))
    for name, each in (("GRPO", recipes.GRPO), ("with the bonus", recipe)):
        credited = each.credit(batch)
        scores, advantages = (
            credited.column(column, "draw").astype(np.float64).round(3).tolist() for column in ("score", "advantage")
        )
        print(f"{name}: scores {scores}, advantages {advantages}")


if __name__ == "__main__":
    main()
