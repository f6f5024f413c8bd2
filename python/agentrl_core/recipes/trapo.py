"""TraPO: train on an unlabelled task if its learning curve resembles the curves of labelled tasks (arXiv:2512.13106).

A task without a label is scored by its majority answer, the answer that most of its rollouts give (on a tie, all score
0). Each visit appends the mean score p of the task to its curve. For eight visits, only labelled tasks are trained.
Then an unlabelled task u is trained if its curve is similar to the reference curves. With all curves cut to the length
of the shortest,

    sim(u) = cos(c_u, mean of the reference curves) >= 0.4,   or u is in the most similar tenth of its batch.

Reference curves are the curves of all labelled tasks, and of the unlabelled tasks that were chosen at their last visit.
The latter are used as they were at that visit, even if the task is evaluated again in this batch. Advantage and loss
are GRPO's, without a KL penalty and with an entropy bonus of 0.01; a batch has two optimizer steps.

Equations:
    Read: the public code and its script, and summaries of the paper by others. The paper's text was not read.

    - N1, reward: `OutcomeScore` for labelled tasks, `SimilarCurves` for unlabelled tasks.
    - C1, pseudo-label: `SimilarCurves`; a tie gives no label.
    - C2, pass rate: column `pass_rate` of `SimilarCurves`.
    - 6, similarity: `SimilarCurves`, the cosine to the mean reference curve, without centring.
    - C3, similarity in the code: `SimilarCurves(similarity="each_curve")`, the mean of the cosines to each reference
      curve; each curve's mean is subtracted first.
    - 7, selection: `SimilarCurves(fraction=0.1, at_least=0.4)`, as C4; one summary gives 0.3 and 0.5 as the best of an
      ablation; not computed: the example uses these two.
    - 8, loss: `Policy(entropy=0.01)` over labelled and chosen tasks together, with one mean over tokens; not computed:
      its example uses given losses of tasks.
    - C4, selection in the code: the same, at least one task.
    - C5, warm-up: `SimilarCurves(visits=8)`.
    - C6, advantage: `GroupRelative`, std with n - 1.

Differs:
    - Epochs: the code counts epochs; this recipe counts the visits of a task.
    - References: the code keeps chosen tasks until a task is chosen again, and then drops all unlabelled references;
      here each task stays a reference as long as it is chosen.
    - KL: 0.001 and no entropy bonus in the later script; 0 and 0.01 in the paper, according to two of its readers, and
      here.

Source: arXiv:2512.13106; code ShenzhiYang2000/TRAPO. Needs: the facts `labelled` (1 or 0), `answer_cluster` and
`answer_parsed` of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, Rows, StatefulComponent, column_name, draw, option
from agentrl_core.loss import Policy
from agentrl_core.operators.votes import cluster_votes
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch
    from agentrl_core.component import IterationRecord, State


@dataclass(frozen=True)
class SimilarCurves(StatefulComponent):
    """Score unlabelled tasks by majority vote; remove their scores if their curves differ from labelled ones.

    Args:
        labelled: draw column that marks tasks with an answer.
        visits: number of visits of a task before it is compared.
        fraction: share of a batch's unlabelled tasks that stay because they are the most similar ones, even if their
            similarity is low; at least one task.
        at_least: every task with at least this similarity stays.
        similarity: `mean_curve`: the cosine to the mean reference curve; `each_curve`: the mean of the cosines to each
            reference curve, after each curve's mean is subtracted.

    Example:
        >>> from agentrl_core.recipes.trapo import SimilarCurves
        >>> SimilarCurves().initial_state()
        {'labelled': {}, 'unlabelled': {}, 'chosen': []}
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        draw("answer_cluster"),
        draw("answer_parsed"),
        draw("group_id"),
        draw("task_id"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), draw("pass_rate"))

    labelled: str = column_name("labelled", level="draw")
    visits: int = option(8, at_least=0)
    fraction: float = option(0.1, at_least=0, at_most=1)
    at_least: float = option(0.4, at_least=-1, at_most=1)
    similarity: Literal["mean_curve", "each_curve"] = "mean_curve"

    def initial_state(self) -> State:
        """Return the state without curves."""
        return {"labelled": {}, "unlabelled": {}, "chosen": []}

    def add_columns(self, state: State, batch: Batch) -> Batch:
        """Return `batch` with a changed `score`, and `pass_rate`: each task's mean score by label or majority vote."""
        rows = Rows(batch, "draw")
        is_labelled, scores, tasks = rows.flags(self.labelled), rows.values("score"), rows.names("task_id")
        scores = np.where(is_labelled, scores, _majority(rows))
        known = np.isfinite(scores)
        names, place = np.unique(tasks, return_inverse=True)
        counts = np.bincount(place, known, minlength=len(names))
        rates = np.bincount(place, np.where(known, scores, 0.0), minlength=len(names)) / np.maximum(counts, 1)
        curves = {
            kind: {
                name: [*state[kind].get(name, []), float(rate)]
                for name, rate, of_task, count in zip(
                    names.tolist(), rates, _any(is_labelled, place), counts, strict=True
                )
                if count and of_task == (kind == "labelled")
            }
            for kind in ("labelled", "unlabelled")
        }
        trained_tasks = self.kept(state, curves["labelled"], curves["unlabelled"]) | set(curves["labelled"])
        stays = np.array([name in trained_tasks for name in names], np.bool_)[place]
        return rows.write(score=np.where(stays, scores, np.nan), pass_rate=np.where(known, rates[place], np.nan))

    def kept(
        self, state: State, labelled: Mapping[str, list[float]], unlabelled: Mapping[str, list[float]]
    ) -> set[str]:
        """Return the unlabelled tasks of a batch that are trained, those with curves most like the reference curves."""
        candidates = {name: curve for name, curve in sorted(unlabelled.items()) if len(curve) > self.visits}
        chosen = {name: state["unlabelled"][name] for name in state["chosen"]}
        references = [*({**state["labelled"], **labelled}).values(), *chosen.values()]
        if not candidates or not references:
            return set()
        length = min(map(len, (*references, *candidates.values())))
        curves, anchors = (
            np.array([c[:length] for c in curve_set], np.float64) for curve_set in (candidates.values(), references)
        )
        if self.similarity == "mean_curve":
            similar = _directions(curves) @ _directions(anchors.mean(axis=0, keepdims=True))[0]
        else:
            similar = (_directions(_standardised(curves)) @ _directions(_standardised(anchors)).T).mean(axis=1)
        first = np.argsort(-similar, kind="stable")[: max(int(self.fraction * len(candidates)), 1)]
        names = list(candidates)
        return {names[row] for row in (*first.tolist(), *np.flatnonzero(similar >= self.at_least).tolist())}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the curves with the visits of an iteration, and the unlabelled tasks that are now references."""
        rows = Rows(closed.batch, "draw")
        if not len(rows) or not closed.batch.has("pass_rate", "draw"):
            return state
        new_state = {kind: dict(state[kind]) for kind in ("labelled", "unlabelled")}
        chosen, seen = set(state["chosen"]), set[str]()
        columns = zip(
            rows.names("task_id"),
            rows.flags(self.labelled).tolist(),
            rows.values("pass_rate").tolist(),
            np.isfinite(rows.values("score")).tolist(),
            strict=True,
        )
        for name, is_labelled, rate, scored in columns:
            if name in seen or rate != rate:  # noqa: PLR0124 - NaN: none of its rollouts has a score
                continue
            seen.add(name)
            curves = new_state["labelled" if is_labelled else "unlabelled"]
            curves[name] = [*curves.get(name, []), rate]
            if not is_labelled:
                chosen = chosen | {name} if scored else chosen - {name}
        return {**new_state, "chosen": sorted(chosen)}


def _majority(rows: Rows) -> NDArray[np.float64]:
    """Return 1 for the answer that most rollouts of a group give, otherwise 0; 0 for all answers on a tie."""
    groups = rows.keys("group_id")
    votes = cluster_votes(rows.keys("answer_cluster"), groups, parsed=rows.flags("answer_parsed"))
    most = np.zeros(int(groups.max(initial=0)) + 1)
    np.maximum.at(most, groups, votes.share)
    ties = _any((votes.share == most[groups]) & ~votes.winner & (votes.share > 0), groups)
    return np.where(ties[groups], 0.0, votes.winner.astype(np.float64))


def _any(flags: NDArray[np.bool_], place: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each group whether any of its flags is set."""
    any_set: NDArray[np.bool_] = np.bincount(place, flags) > 0
    return any_set


def _standardised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return curves minus their mean, divided by their standard deviation; zero for constant curves."""
    return np.asarray((rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + 1e-8))


def _directions(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows scaled to length 1; rows of zeros stay zero."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-8))


TRAPO = Recipe(
    name="trapo",
    source="arXiv:2512.13106",
    reward=(OutcomeScore(), SimilarCurves()),
    advantage=GroupRelative(),
    loss=Policy(entropy=0.01),
    minibatches=2,
)
