r"""SPARK: train the same model to judge and to reflect, on the same rollouts (arXiv:2509.22624).

After the solutions of a batch come items made from them: tasks with as many answers as the group has solutions, trained
in the same update and with advantages by the same rule:

    all right:  judge one solution alone: "is it right?", label yes
    all wrong:  judge one solution alone: "is it right?", label no
    mixed:      with probability 0.3 judge one alone, right or wrong at random;
                else judge one of each kind together: "which is right?", label A or B
    any wrong:  reflect: the task again, with a wrong answer in the prompt; the environment rewards it

A batch has at most 32 judgements and 32 reflections, of randomly chosen groups. A judgement shows only results. A
reflection shows the whole wrong trajectory in the first half of the batch's groups, and only its result in the second
half; its prompt requests a check of this answer. A trajectory without a result (`result`) is not judged, and is
reflected on only in the first half. The verdict of a judgement is read from its last `\boxed{...}`. KL 0.001 to the
reference.

    A_i = (R_i - mean R) / std R over the group, also over the group of an item; std of n

Equations:
    Read: the paper's sections 3.1 and 3.2, the public code and README.

    - 2, reward: the environment's for tasks and reflections, `Label` for judgements.
    - 3, advantage: `GroupRelative(ddof=0)`; each item has its own group.
    - 4, objective: `Policy(kl=KL(0.001))`; not computed: the expectation itself, whose loss is C5.
    - 5, pointwise items: `JudgeAndReflect.judge`, of one result.
    - 6, pairwise items: `JudgeAndReflect.judge`, of two results.
    - 7, reflection items: `JudgeAndReflect.look_again`.
    - C1, judge items: `JudgeAndReflect.judge`; `JudgeAndReflect.judged_alone` decides whether it shows one result
      or two.
    - C2, reflection items: `JudgeAndReflect.look_again`; the paper does not divide the batch into halves.
    - C3, schedule: left out: the code caches items, and trains 64 of them in a separate step once it has that many.
      Here the items of a batch, at most 32 + 32, are sampled and trained with it, so none is older than the policy.
    - C4, advantage in the code: an option, `GroupRelative(eps=1e-9)`, std of n - 1.
    - C5, loss: `Policy(kl=KL(0.001))`, one mean over the tokens of a step.

Differs:
    - All right: the code judges the first rollout, even if its answer cannot be read; here a random one of the rollouts
      with a readable answer.
    - Epsilon of the advantage: the paper gives no number; 1e-6 here.
    - Clip range: not in the paper; 0.2 in the code and here.
    - Rewards: the code rounds rewards other than 0 and 1; here a score above 0 is right.
    - Discount: 1 in the code's settings, but its loss does not read it; none here.
    - Optimizer steps: not in the paper. The code makes 8 steps of 64 rows for 512 solutions, and 8 more for 64 items;
      here 16 for solutions and items together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn, Task
from agentrl_core.loss import KL, Policy
from agentrl_core.rollout import Branch, Cohort, Group, Rollout, SideTask, insert_text

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True)
class Label(SideTask):
    r"""Question with one right answer, to be given in `\boxed{...}`.

    Args:
        label: the right answer; upper and lower case are equivalent.

    Example:
        >>> from agentrl_core.recipes.spark import Label
        >>> Label(label="yes").reward("It is \\boxed{Yes}."), Label(label="yes").reward("yes")
        (1.0, 0.0)
    """

    label: str = option("yes", filled=True)

    def reward(self, text: str) -> float:
        """Return 1 if the last boxed text is the label, else 0."""
        boxed = _BOXED.findall(text)
        return float(bool(boxed) and boxed[-1].strip().lower() == self.label.lower())


@dataclass(frozen=True)
class JudgeAndReflect(Rollout):
    r"""Sample solutions, then judgements of these solutions and reflections on them.

    The draw column `recycled` is 1 for judgements and reflections.

    Args:
        judgements: largest number of items of a batch in which solutions are judged.
        reflections: largest number of items of a batch in which the policy reflects on a wrong solution.
        pointwise: probability that one solution of a mixed group is judged alone.
        column: draw column that is compared with `solved_above`.
        solved_above: a solution is right if its value in `column` is larger.
        result: regular expression; the result of a solution is the first non-empty group of its last match.
        alone: prompt template about the result of one solution, with `{question}` and `{answer}`.
        pair: prompt template about the results of two solutions, with `{question}`, `{first}` and `{second}`.
        reflect: prompt template of a reflection, with `{prompt}`, and the wrong answer as `{text}`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.spark import JudgeAndReflect
        >>> JudgeAndReflect().result_of("<answer>5</answer> no, <answer>7</answer>")
        '7'
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"recycled": ExtraColumn("trajectory")}

    judgements: int = option(32, at_least=0)
    reflections: int = option(32, at_least=0)
    pointwise: float = option(0.3, at_least=0, at_most=1)
    column: str = option("score", filled=True)
    solved_above: float = 0.0
    result: str = option(r"\\boxed\{([^{}]*)\}|<answer>(.*?)</answer>", filled=True)
    alone: str = option(
        "{question}\n\nAn answer:\n{answer}\n\nIs it right? \\boxed{{yes}} or \\boxed{{no}}.", filled=True
    )
    pair: str = option(
        "{question}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\nWhich is right? \\boxed{{A}} or \\boxed{{B}}.",
        filled=True,
    )
    reflect: str = option(
        "{prompt}\n\nA proposed answer:\n{text}\n\nJudge whether it is right. If it is not, give the right answer.",
        filled=True,
    )

    def result_of(self, text: str) -> str:
        """Return the result of a solution, or an empty text if it has none."""
        results = [next(filter(None, match.groups()), "") for match in re.finditer(self.result, text, re.DOTALL)]
        return results[-1].strip() if results else ""

    async def group(self, group: Group) -> None:
        """Run the solutions of a group."""
        await group.run(group.start_many(group.size, facts={"recycled": 0.0}))

    async def cohort(self, groups: Cohort) -> None:
        """Run all solutions, then judgements of some of them and reflections on some wrong ones."""
        await groups.run()
        scores = await groups.score(self.column)
        kinds = [self.sorted(group, known) for group, known in zip(groups, scores, strict=True)]
        rows = sorted(range(len(groups)), key=lambda row: groups.uniform("item", row))
        judged = [row for row in rows if any(kinds[row])][: self.judgements]
        half = (len(groups) + 1) // 2
        failed = [self.failed(group, known) for group, known in zip(groups, scores, strict=True)]
        to_reflect = [failed[row] if row < half else kinds[row][1] for row in range(len(groups))]
        looked_at = [row for row in rows if to_reflect[row]][: self.reflections]
        numbers = {group.name: row for row, group in enumerate(groups)}

        async def items(group: Group) -> None:
            row = numbers[group.name]
            right, wrong = kinds[row]
            if row in judged:
                await self.judge(group, right, wrong)
            if row in looked_at:
                await self.look_again(group, to_reflect[row], whole=row < half)

        await groups.run_each(items)

    def sorted(self, group: Group, scores: NDArray[np.float64]) -> tuple[list[Branch], list[Branch]]:
        """Return the right and the wrong solutions that have a result."""
        known = [
            (branch, score > self.solved_above)
            for branch, score in zip(group.branches, scores.tolist(), strict=True)
            if np.isfinite(score) and self.result_of(branch.text)
        ]
        return [branch for branch, solved in known if solved], [branch for branch, solved in known if not solved]

    def failed(self, group: Group, scores: NDArray[np.float64]) -> list[Branch]:
        """Return the wrong solutions, with or without a result."""
        return [
            branch for branch, score in zip(group.branches, scores.tolist(), strict=True) if score <= self.solved_above
        ]

    def judged_alone(self, right: int, wrong: int, draw: float) -> bool:
        """Return whether one solution is judged alone.

        Args:
            right: number of right solutions.
            wrong: number of wrong solutions.
            draw: a random number from 0 to 1.
        """
        return not right or not wrong or draw < self.pointwise

    async def judge(self, group: Group, right: Sequence[Branch], wrong: Sequence[Branch]) -> None:
        """Run a side task that judges one solution of a group, or compares a right with a wrong one."""
        if not self.judged_alone(len(right), len(wrong), group.uniform("pointwise")):
            ordered = [_one(group, "right", right), _one(group, "wrong", wrong)]
            label = "A" if group.uniform("order") < 0.5 else "B"
            first, second = (self.result_of(each.text) for each in (ordered if label == "A" else ordered[::-1]))
            question = self.pair.format(question=group.prompt, first=first, second=second)
            about = ordered[0]
        else:
            is_right = bool(right) and (not wrong or group.uniform("polarity") < 0.5)
            about = _one(group, "judged", right if is_right else wrong)
            question = self.alone.format(question=group.prompt, answer=self.result_of(about.text))
            label = "yes" if is_right else "no"
        task = Task(f"{group.task.task_id}/judgement", question, "judgement", group.task.payload)
        await group.spawn(task, size=group.size, parent=about, program=Label("recycled", label=label))

    async def look_again(self, group: Group, wrong: Sequence[Branch], *, whole: bool) -> None:
        """Run rollouts that reflect on a wrong solution; their prompt shows the whole solution or only its result."""
        about = _one(group, "reflected", wrong)
        solution_text = about.text if whole else self.result_of(about.text)
        await group.spawn(group.task, size=group.size, parent=about, program=_Reflection(self.reflect, solution_text))


@dataclass(frozen=True)
class _Reflection(Rollout):
    """Repeat the task with a wrong answer in the prompt."""

    template: str = "{text}"
    shown: str = ""

    async def group(self, group: Group) -> None:
        """Run the requested number of reflections."""
        await group.run(
            group.start_many(
                group.size, lambda messages: insert_text(messages, self.template, self.shown), facts={"recycled": 1.0}
            )
        )


def _one(group: Group, name: str, branches: Sequence[Branch]) -> Branch:
    """Return one branch, chosen at random."""
    return branches[int(group.uniform(name) * len(branches))]


SPARK = Recipe(
    name="spark",
    source="arXiv:2509.22624",
    rollout=JudgeAndReflect(),
    advantage=GroupRelative(ddof=0),
    loss=Policy(kl=KL(0.001)),
    minibatches=16,
)
