"""EnvGen: an agent writes environments that train what the policy is weak at (arXiv:2403.12014).

Tasks have skills (their domain, or a key column). In a cycle the share of rollouts that succeed is measured for each
skill in each iteration, on the original tasks alone; at its end an agent (`designer`) reads the mean of these shares,
their standard deviation and the environments of the cycle, and writes the next ones, JSON objects that change parts of
a task: its `question`, its `payload`. The first half of the next cycle (`share`) is rolled out on them, the second on
the original tasks, where the shares are measured; or with `mixture="groups"` each group is on one of them with
probability `share`. There are few calls: four in the paper, one a cycle here. Configurations are those of
the last cycle; those that are no such JSON are left out. The paper's small agent with a value network, and PPO with it,
are left out: the policy is a language model that GRPO trains.

Equations:
    Read: the public code of the environments, the abstract, and a reader's list of the four steps of a cycle. The code
    of the training is not public, and the paper's text was not read.

    - C1, feedback: `Designed.feedback`; shares are whole percents, and so are the mean and the deviation that are sent.
    - C2, new environments: `Designed.design`; not computed: texts of the designer, as in the tests of the recipe.
    - C3, consistent inventory: left out: it is of one game; its environment completes what a configuration lacks.
    - C4, copies: not computed: a configuration is drawn for each group, with equal chances; the rollouts of a group are
      its copies.
    - N3, order of a cycle: `Designed.on_designed`.
    - N1, mixture: `Designed(share=0.5)`.
    - N2, agent: `Policy`, clip range 0.2.

Differs:
    - Advantage: of a value network in the paper; of the group here.
    - Evaluations: three of the trained agent in the code; each iteration on the original tasks is one here.
    - First cycle: on environments that are written without feedback in the paper; on the original tasks here.
    - Cycle: its length is not given; 10 iterations here.
    - Talk with the designer: the code keeps earlier answers; here each question has the last environments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.env import ExtraColumn, Task
from agentrl_core.loss import Policy
from agentrl_core.rollout import Cohort, Group, Independent, TextMemory, ask_agent, read_notes

_CHANGED = ("question", "payload")
"""The parts of a task that a configuration changes."""


@dataclass(frozen=True)
class Designed(TextMemory):
    r"""Groups on their own tasks and on environments that were written for what the policy is weak at.

    The draw column `designed` is 1 for the latter.

    Args:
        every: iterations of a cycle.
        count: configurations that are asked for.
        share: of a cycle that is rolled out on them, below 1.
        mixture: `phases`: the first iterations of a cycle, all groups; `groups`: each group with this probability.
        designer: who writes them.
        question: what it is asked: `{skills}` is a line of each skill with its share, `{environments}` a line of each
            environment of this cycle, `{count}` how many are wanted.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.env_gen import Designed
        >>> Designed().said({"skills": {"dig": [20, 30], "cut": [100]}})
        'dig: 25 % +/- 5 %\ncut: 100 % +/- 0 %'
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"designed": ExtraColumn("trajectory")}

    every: int = option(10, at_least=1)
    count: int = option(4, at_least=1)
    share: float = option(0.5, at_least=0, below=1)
    mixture: Literal["phases", "groups"] = "phases"
    designer: str = option("designer", filled=True)
    question: str = option(
        "An agent succeeds so often at each of these skills:\n{skills}\n\nIt trains on these environments:\n"
        "{environments}\n\nWrite {count} environments that train what "
        'it is weak at, each as a JSON object with "question" or "payload".',
        filled=True,
    )

    def initial_state(self) -> State:
        """No environments, and nothing measured."""
        return {"made": [], "skills": {}}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Measurements; at the end of a cycle the new environments, and an empty measurement."""
        if self.ends(closed.iteration):
            return {"made": read_notes(closed.finished, "environment"), "skills": {}}
        return {"made": state["made"], "skills": _added(state["skills"], read_notes(closed.finished, "solved"))}

    def ends(self, iteration: int) -> bool:
        """Return whether an iteration is the last of a cycle."""
        return (iteration + 1) % self.every == 0

    def said(self, state: Mapping[str, Any]) -> str:
        """Return how often each skill succeeds, in words."""
        measured = {skill: self.feedback(percents) for skill, percents in state["skills"].items()}
        return "\n".join(f"{skill}: {mean:.0f} % +/- {error:.0f} %" for skill, (mean, error) in measured.items())

    @staticmethod
    def feedback(percents: Sequence[float]) -> tuple[float, float]:
        """Return the mean and the standard deviation, by n, of the success of a skill in several iterations."""
        return float(np.mean(percents)), float(np.std(percents))

    def changed(self, task: Task, number: int, configuration: Mapping[str, Any]) -> Task:
        """The task of a configuration."""
        given = {name: configuration[name] for name in _CHANGED if name in configuration}
        return replace(task, task_id=f"{task.task_id}/designed {number}", solution=(), **given)

    def on_designed(self, group: Group) -> bool:
        """Return whether a group is rolled out on an environment that was written, if there are any."""
        if self.mixture == "phases":
            return group.iteration % self.every < int(self.share * self.every)
        return group.uniform("designed") < self.share

    async def group(self, group: Group) -> None:
        """Rollouts of its own task, or on an environment that was written."""
        made = self.recall(group)["made"]
        if made and self.on_designed(group):
            number = int(group.uniform("which") * len(made))
            task = self.changed(group.task, number, made[number])
            await group.spawn(task, size=group.size, program=_OnDesigned())
        else:
            await group.run(group.start_many(group.size, facts={"designed": 0.0}))

    async def cohort(self, groups: Cohort) -> None:
        """All groups; at the end of a cycle, environments for the next one."""
        await groups.run()
        original = [group for group in groups if group.branches]
        solved = [_outcome(group) for group in original]
        for group, outcome in zip(original, solved, strict=True):
            self.note(group, "solved", outcome, group.branches[0])
        if original and self.ends(groups[0].iteration):
            skills = _added(self.recall(groups[0])["skills"], solved)
            await groups.run_each(lambda group: self.design(group, skills), original[:1])

    async def design(self, group: Group, skills: Mapping[str, Any]) -> None:
        """Ask for environments, and note those that are ones."""
        made, about = self.recall(group)["made"], group.branches[0]
        question = self.question.replace("{skills}", self.said({"skills": skills}))
        question = question.replace("{environments}", "\n".join(map(json.dumps, made)))
        text = await ask_agent(group, question.replace("{count}", str(self.count)), agent=self.designer, about=about)
        for configuration in configurations(text)[: self.count]:
            self.note(group, "environment", configuration, about)


@dataclass(frozen=True)
class _OnDesigned(Independent):
    """Rollouts on an environment that was written."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = Designed.facts

    async def group(self, group: Group) -> None:
        """As many as were asked for."""
        await group.run(group.start_many(group.size, facts={"designed": 1.0}))


def configurations(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text that change something of a task.

    Example:
        >>> from agentrl_core.recipes.env_gen import configurations
        >>> configurations('Here: {"question": "dig"} and {"x": 1} and {')
        [{'question': 'dig'}]
    """
    decoder, found, place = json.JSONDecoder(), [], text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            if any(name in value for name in _CHANGED) and isinstance(value.get("question", ""), str):
                found.append(value)
        place = text.find("{", end)
    return found


def _outcome(group: Group) -> list[Any]:
    """The skill of a group, how many of its rollouts succeeded, and how many there are."""
    return [group.task.domain, sum(bool(branch.success) for branch in group.branches), len(group.branches)]


def _added(skills: Mapping[str, Any], solved: list[Any]) -> dict[str, list[int]]:
    """Success of each skill in whole percents, iteration by iteration, with an iteration more."""
    counts: dict[str, list[int]] = {}
    for skill, won, tried in solved:
        before = counts.get(skill, [0, 0])
        counts[skill] = [before[0] + won, before[1] + tried]
    after = {skill: list(percents) for skill, percents in skills.items()}
    for skill, (won, tried) in counts.items():
        after[skill] = [*after.get(skill, []), round(100 * won / tried)]
    return after


ENV_GEN = Recipe(
    name="env_gen",
    source="arXiv:2403.12014",
    rollout=Designed(),
    advantage=GroupRelative(),
    loss=Policy(),
)
