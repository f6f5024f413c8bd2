"""TraPO: compare similarity with loops, test ties, and run with tasks whose curves differ left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import small
from small_world import SmallWorld

from agentrl_core import Collector, Store
from agentrl_core.component import IterationRecord
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.trapo import TRAPO, SimilarCurves

RATES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
CURVES = st.dictionaries(st.sampled_from("abcd"), st.lists(RATES, min_size=2, max_size=4), max_size=3)


def similarity(curve: list[float], references: list[list[float]], length: int) -> float:
    """Return the mean cosine of standardised curves, by the formula."""
    cosines = []
    for other in references:
        x, y = (np.array(each[:length]) for each in (curve, other))
        x, y = ((each - each.mean()) / (each.std() + 1e-8) for each in (x, y))
        norm = float(np.linalg.norm(x) * np.linalg.norm(y))
        cosines.append(float(x @ y) / norm if norm else 0.0)
    return sum(cosines) / len(cosines)


@settings(max_examples=150, deadline=None)
@given(CURVES, CURVES, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([-0.5, 0.4, 0.9]), st.integers(1, 3))
def test_kept_tasks_match_the_definition(
    labelled: dict[str, list[float]],
    unlabelled: dict[str, list[float]],
    fraction: float,
    at_least: float,
    visits: int,
) -> None:
    component = SimilarCurves(visits=visits, fraction=fraction, at_least=at_least, similarity="each_curve")
    state = {"labelled": {"z": [0.0, 0.5, 1.0]}, "unlabelled": {"y": [1.0, 0.5, 0.0]}, "chosen": ["y"]}
    batch_curves = {f"own {name}": curve for name, curve in labelled.items()}
    candidates = {name: curve for name, curve in unlabelled.items() if len(curve) > visits}
    references = [[0.0, 0.5, 1.0], *batch_curves.values(), [1.0, 0.5, 0.0]]
    expected = set()
    if candidates:
        length = min(len(curve) for curve in (*references, *candidates.values()))
        similarities = {name: similarity(curve, references, length) for name, curve in candidates.items()}
        if any(abs(value - at_least) < 1e-6 for value in similarities.values()):
            return  # rounding decides at the edge
        expected = {name for name, value in similarities.items() if value >= at_least}
        count = max(int(fraction * len(candidates)), 1)
        order = sorted(similarities, key=lambda name: (-round(similarities[name], 9), name))
        if count < len(order) and abs(similarities[order[count - 1]] - similarities[order[count]]) < 1e-6:
            return  # equal ones: any may be first
        expected |= set(order[:count])
    assert component.kept(state, batch_curves, unlabelled) == expected


def test_a_chosen_task_remains_a_reference_when_it_is_in_the_batch_again() -> None:
    """By hand: the similarity to the labelled curve alone is 0.25, and 0.59 with the chosen task, also in the batch."""
    labelled, chosen, judged = [0.0, 0.25, 0.5, 0.5], [0.0, 0.0, 0.0, 0.25], [0.25, 0.0, 0.0, 0.75]
    state = {"labelled": {}, "unlabelled": {"u": chosen, "v": judged}, "chosen": ["u"]}
    component = SimilarCurves(visits=3, fraction=0.0, at_least=0.4, similarity="each_curve")
    alone, also = similarity(judged, [labelled], 4), similarity(judged, [labelled, chosen], 4)
    assert alone < 0.4 < also
    assert (round(alone, 2), round(also, 2)) == (0.25, 0.59)
    both = {"u": [*chosen, 0.5], "v": [*judged, 0.5]}
    assert component.kept(state, {"l": labelled}, both) == {"u", "v"}
    assert component.kept({**state, "chosen": []}, {"l": labelled}, both) == {"u"}


def test_majorities_by_hand() -> None:
    """Clusters 1 1 2: the first two are right, mean 2/3. A tie 1 2: none is right. Without an answer: no vote."""
    batch = small(
        [(0, [1])] * 3 + [(1, [1])] * 2 + [(2, [1])] * 3,
        draw_score=[0.0] * 8,
        draw_labelled=[0.0] * 5 + [1.0] * 3,
        draw_answer_cluster=[1, 1, 2, 3, 4, 5, 5, 6],
        draw_answer_parsed=[1, 1, 1, 1, 1, 1, 1, 1],
    ).with_columns("draw", score=[0.0] * 5 + [1.0, 0.0, 0.0])
    scored = SimilarCurves(visits=0, at_least=-1.0).add_columns({"labelled": {}, "unlabelled": {}, "chosen": []}, batch)
    assert scored.column("pass_rate", "draw").tolist() == pytest.approx([2 / 3] * 3 + [0.0] * 2 + [1 / 3] * 3)
    assert scored.column("score", "draw").tolist() == [1, 1, 0, 0, 0, 1, 0, 0]
    waits = SimilarCurves().add_columns({"labelled": {}, "unlabelled": {}, "chosen": []}, batch)
    assert np.isnan(waits.column("score", "draw")).tolist() == [True] * 5 + [False] * 3, "labelled tasks alone"


class Learns(SmallWorld):
    """Even tasks have an answer. Task 1 is learnt like them, task 3 the other way round."""

    facts = {  # noqa: RUF012 - as an author writes it
        "labelled": ExtraColumn("trajectory"),
        "answer_cluster": ExtraColumn("trajectory"),
        "answer_parsed": ExtraColumn("trajectory"),
    }

    def __init__(self) -> None:
        super().__init__(self.outcome)
        self.iteration = 0
        self.attempts = 0

    def outcome(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del seed, actions
        number = int(task.task_id.split()[1])
        self.attempts += 1
        rate = self.iteration + 1 if number != 3 else 4 - self.iteration
        # Of four rollouts of a group `rate` give the right answer, the others different wrong answers.
        right = self.attempts % 4 < rate
        facts = {"labelled": float(number % 2 == 0), "answer_parsed": 1.0}
        facts["answer_cluster"] = 0.0 if right else float(self.attempts)
        return StepResult(reward=float(right), terminated=True, success=right, facts=facts)


def test_a_run_adds_an_unlabelled_task_whose_curve_is_similar(tmp_path: Path) -> None:
    recipe = TRAPO.replace(reward=(TRAPO.chain("reward")[0], SimilarCurves(visits=2, fraction=0.0, at_least=0.4)))
    assert Recipe.from_toml(TRAPO.to_toml()) == TRAPO
    world = Learns()
    with Store.open(tmp_path / "run") as store:
        for iteration in range(4):
            world.iteration = iteration
            collect = Collector(world, world, recipe, store=store, task_pool=4, concurrency=1)
            batch = recipe.credit(collect(tasks=4, group_size=4))
            tasks, scores = np.array(batch.texts("task_id", "draw")), batch.column("score", "draw")
            trained = sorted(set(tasks[np.isfinite(scores)].tolist()))
            if iteration < 2:
                assert trained == ["train 0", "train 2"], "labelled tasks alone"
            else:
                assert {"train 0", "train 1", "train 2"} <= set(trained)
            collect.end_iteration(batch, {})
        state = collect._now().components["reward[1].SimilarCurves"]
        assert store.verify() == []
    assert set(state["labelled"]) == {"train 0", "train 2"}
    assert {name: len(curve) for name, curve in state["unlabelled"].items()} == {"train 1": 4, "train 3": 4}
    assert "train 1" in state["chosen"]
    again = SimilarCurves(visits=2).next(state, IterationRecord.of(batch))
    assert {len(curve) for curve in again["labelled"].values()} == {5}
