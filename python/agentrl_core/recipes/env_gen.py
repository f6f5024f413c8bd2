"""EnvGen: let an agent write environments that train the weak skills of the policy (arXiv:2403.12014).

The skill of a task is its domain. During a cycle, the success rate of each skill is measured in each iteration, on the
original tasks alone. At the end of the cycle an agent (`designer`) reads the mean and the standard deviation of these
rates, and the environments of the cycle. It writes the environments of the next cycle: JSON objects that change parts
of a task, its `question` or its `payload`. In the first half of the next cycle (`share`) all groups are rolled out on
these environments, in the second half on the original tasks, which are measured. With `mixture="groups"`, each group is
on one of these environments with probability `share` instead. The designer is called rarely: four times in the paper,
once a cycle here. Only configurations of the last cycle are used, and texts that are not such JSON objects are left
out. The paper's small agent with a value network, trained with PPO, is left out: here GRPO trains a language model.

Equations:
    Read: the public code of the environments, the abstract, and a reader's list of the four steps of a cycle. The code
    of the training is not public, and the paper's text was not read.

    - C1, feedback: `DesignedEnvironments.feedback`; rates are whole percents, and so are the mean and the deviation in
      the prompt.
    - C2, new environments: `DesignedEnvironments.design`; not computed: the designer writes texts; the recipe's tests
      check them.
    - C3, consistent inventory: left out: it is specific to one game, whose environment completes missing parts of a
      configuration.
    - C4, copies: not computed: each group draws a configuration, all with equal probability; the rollouts of a group
      are its copies.
    - N3, order of a cycle: `DesignedEnvironments.on_designed`.
    - N1, mixture: `DesignedEnvironments(share=0.5)`.
    - N2, agent: `Policy`, clip range 0.2.

Differs:
    - Advantage: from a value network in the paper; relative to the group here.
    - Evaluations: three of the trained agent in the code; each iteration on the original tasks is one here.
    - First cycle: on environments that are written without feedback in the paper; on the original tasks here.
    - Cycle: its length is not given; 10 iterations here.
    - Talk with the designer: the code keeps earlier answers in the prompt; here each prompt has the last environments.
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
"""Names of the parts of a task that a configuration can change."""


@dataclass(frozen=True)
class DesignedEnvironments(TextMemory):
    r"""Roll out groups on their own tasks, and on environments designed for the weak skills of the policy.

    The draw column `designed` is 1 for rollouts on designed environments.

    Args:
        every: number of iterations in a cycle.
        count: requested number of configurations.
        share: share of a cycle that is rolled out on designed environments, below 1.
        mixture: `phases`: all groups of the first iterations of a cycle are on designed environments; `groups`: each
            group is on one with probability `share`.
        designer: name of the agent that writes the environments.
        question: prompt template of the designer: `{skills}` is one line per skill with its success rate,
            `{environments}` one line per environment of this cycle, `{count}` the requested number.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.env_gen import DesignedEnvironments
        >>> DesignedEnvironments().skill_lines({"skills": {"dig": [20, 30], "cut": [100]}})
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
        """Return a state without environments and without measurements."""
        return {"made": [], "skills": {}}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Add the iteration's measurements; after a cycle, keep its new environments and clear the measurements."""
        if self.ends(closed.iteration):
            return {"made": read_notes(closed.finished, "environment"), "skills": {}}
        return {"made": state["made"], "skills": _added(state["skills"], read_notes(closed.finished, "solved"))}

    def ends(self, iteration: int) -> bool:
        """Return whether an iteration is the last of a cycle."""
        return (iteration + 1) % self.every == 0

    def skill_lines(self, state: Mapping[str, Any]) -> str:
        """Return a line per skill with the mean and the standard deviation of its success rate."""
        measured = {skill: self.feedback(percents) for skill, percents in state["skills"].items()}
        return "\n".join(f"{skill}: {mean:.0f} % +/- {error:.0f} %" for skill, (mean, error) in measured.items())

    @staticmethod
    def feedback(percents: Sequence[float]) -> tuple[float, float]:
        """Return the mean and the standard deviation (divisor n) of a skill's success rates in several iterations."""
        return float(np.mean(percents)), float(np.std(percents))

    def changed(self, task: Task, number: int, configuration: Mapping[str, Any]) -> Task:
        """Return the task with the parts that a configuration changes, and without a solution."""
        changes = {name: configuration[name] for name in _CHANGED if name in configuration}
        return replace(task, task_id=f"{task.task_id}/designed {number}", solution=(), **changes)

    def on_designed(self, group: Group) -> bool:
        """Return whether a group is rolled out on a designed environment, if there are any."""
        if self.mixture == "phases":
            return group.iteration % self.every < int(self.share * self.every)
        return group.uniform("designed") < self.share

    async def group(self, group: Group) -> None:
        """Roll out a group on a designed environment or on its own task."""
        environments = self.recall(group)["made"]
        if environments and self.on_designed(group):
            number = int(group.uniform("which") * len(environments))
            task = self.changed(group.task, number, environments[number])
            await group.spawn(task, size=group.size, program=_OnDesigned())
        else:
            await group.run(group.start_many(group.size, facts={"designed": 0.0}))

    async def cohort(self, groups: Cohort) -> None:
        """Roll out all groups and note outcomes on original tasks; after a cycle, design the next environments."""
        await groups.run()
        original = [group for group in groups if group.branches]
        solved = [_outcome(group) for group in original]
        for group, outcome in zip(original, solved, strict=True):
            self.note(group, "solved", outcome, group.branches[0])
        if original and self.ends(groups[0].iteration):
            skills = _added(self.recall(groups[0])["skills"], solved)
            await groups.run_each(lambda group: self.design(group, skills), original[:1])

    async def design(self, group: Group, skills: Mapping[str, Any]) -> None:
        """Query the designer for configurations, and note the valid ones."""
        environments, about = self.recall(group)["made"], group.branches[0]
        question = self.question.replace("{skills}", self.skill_lines({"skills": skills}))
        question = question.replace("{environments}", "\n".join(map(json.dumps, environments)))
        text = await ask_agent(group, question.replace("{count}", str(self.count)), agent=self.designer, about=about)
        for configuration in configurations(text)[: self.count]:
            self.note(group, "environment", configuration, about)


@dataclass(frozen=True)
class _OnDesigned(Independent):
    """Roll out a group on a designed environment."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = DesignedEnvironments.facts

    async def group(self, group: Group) -> None:
        """Roll out the requested number of members."""
        await group.run(group.start_many(group.size, facts={"designed": 1.0}))


def configurations(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in a text that change a part of a task.

    Example:
        >>> from agentrl_core.recipes.env_gen import configurations
        >>> configurations('Here: {"question": "dig"} and {"x": 1} and {')
        [{'question': 'dig'}]
    """
    decoder, objects, place = json.JSONDecoder(), [], text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            if any(name in value for name in _CHANGED) and isinstance(value.get("question", ""), str):
                objects.append(value)
        place = text.find("{", end)
    return objects


def _outcome(group: Group) -> list[Any]:
    """Return the skill of a group, the number of its successful rollouts, and the number of its rollouts."""
    return [group.task.domain, sum(bool(branch.success) for branch in group.branches), len(group.branches)]


def _added(skills: Mapping[str, Any], solved: list[Any]) -> dict[str, list[int]]:
    """Return the success rates of each skill in percent, one per iteration, with the newest iteration added."""
    counts: dict[str, list[int]] = {}
    for skill, successes, attempts in solved:
        before = counts.get(skill, [0, 0])
        counts[skill] = [before[0] + successes, before[1] + attempts]
    after = {skill: list(percents) for skill, percents in skills.items()}
    for skill, (successes, attempts) in counts.items():
        after[skill] = [*after.get(skill, []), round(100 * successes / attempts)]
    return after


ENV_GEN = Recipe(
    name="env_gen",
    source="arXiv:2403.12014",
    rollout=DesignedEnvironments(),
    advantage=GroupRelative(),
    loss=Policy(),
)
