"""DigiRL: compare which steps are imitated with a loop."""

from __future__ import annotations

import numpy as np
import pytest
from compared import close, column
from rollouts import plain, ragged

from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.digirl import DIGIRL, DoublyRobust, ImitatedSteps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["paper", "code"])
def test_doubly_robust(kind: str, seed: int) -> None:
    batch = ragged(seed)
    rng = np.random.default_rng(seed)
    values = rng.uniform(size=len(batch.column("step", "step")))
    batch = batch.with_columns("step", value=values)
    expected, keep = [], []
    for draw in plain(batch):
        rewards = [step.reward if np.isfinite(step.reward) else 0.0 for step in draw.steps]
        critic = [*(float(values[step.row]) for step in draw.steps), 0.0]
        for t, reward in enumerate(rewards):
            gain = critic[t + 1] + reward - critic[t]
            if kind == "paper":
                share = 0.5 ** (len(rewards) - 1 - t)
                advantage, bar = share * draw.score + (1.0 - share * draw.score) * gain, 0.1
            else:
                advantage = gain - 0.05 + sum(0.5 ** (j - t) * rewards[j] for j in range(t, len(rewards)))
                bar = 0.0
            expected.append(advantage if draw.valid else 0.0)
            keep.append(draw.valid and advantage > bar)
    credited = DoublyRobust(kind=kind)(batch)
    close(column(credited, level="step"), expected)
    assert not credited.has("keep", "step")
    filtered = ImitatedSteps(above=0.1 if kind == "paper" else 0.0)(credited)
    assert column(filtered, "keep", "step") == keep
    close(column(filtered, level="step"), expected)
    gains = []
    for draw in plain(batch):
        rewards = [step.reward if np.isfinite(step.reward) else 0.0 for step in draw.steps]
        gains += [
            draw.valid and (draw.score > 0.0 if kind == "paper" else any(rewards[t:])) for t in range(len(rewards))
        ]
    assert column(credited, "return", "step") == gains


def test_the_filter_keeps_only_steps_that_earlier_links_kept() -> None:
    batch = ragged(0)
    count = len(batch.column("step", "step"))
    batch = batch.with_columns("step", advantage=np.full(count, 0.5), keep=np.arange(count) % 2)
    assert [link.phase for link in DIGIRL.chain("weight")] == ["weight", "weight"]
    keep = column(ImitatedSteps()(batch), "keep", "step")
    assert keep == [draw.valid and step.row % 2 == 1 for draw in plain(batch) for step in draw.steps]
    assert any(keep)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImitatedSteps(above=-1.0), "above=-1.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
