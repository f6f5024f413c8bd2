"""InT: the policy finds the first error of a failed attempt itself, and proposes the step to take instead.

For each failure the policy is shown the right solution and names the first bad step and an intervention of less than
200 tokens. The attempt's text before that step, followed by the intervention, is imitated if at least one of 32
continuations of it succeeds; the continuations, and what follows the intervention, are not. This is the supervised
stage before reinforcement learning, which is GRPO on the same tasks: nothing else is trained here. An intervention
that gives the answer away is for `reveals`, a pattern, to refuse.

Equations:
    Read: the abstract, the beginning of the project page, the README of the code, and notes of readers of the paper;
    its text was not read.

    - P1, target: `Intervene`: the text before the first error and the intervention, all of it trained.
    - N1, fine-tuning loss: `Imitation("token_mean")`.
    - N2, filter: `Intervene`: 32 continuations, at most 199 tokens, and `reveals`.
    - N3, after it: left out: the later stage is the recipe `grpo`, on tasks that the base never solves.

Differs:
    - Prefix: imitated with the intervention, as abstract and README have it; the project page's caption names the
      intervention alone.
    - Length: most interventions have less than 200 tokens by a note, which does not call it a filter; here longer ones
      are refused (`tokens`).
    - Epochs: 4 over about 1100 targets in the notes; as many as the loop makes here.
    - Interventions that give the answer away: found by a pattern, `reveals`, here; how is not stated in the notes.

Source: InT: Self-Proposed Interventions (arXiv:2601.14209). Needs: `Task.solution`, and a model that can write `number:
text`. One that cannot, such as the small one that `agentrl train` makes, proposes nothing, and nothing is imitated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Imitation
from agentrl_core.rollout import (
    Branch,
    ErrorLocation,
    ErrorLocator,
    Group,
    Repair,
    RolloutSpec,
    RoundResult,
    ask_agent,
    fill_template,
)
from agentrl_core.rollout.programs.repair import reasoning_steps


@dataclass(frozen=True)
class OwnProposal(ErrorLocator):
    """Let the policy find, with the solution in sight, the step at which an attempt went wrong, and a replacement.

    Its answer is read as the number of a step, a colon and the text of the intervention; the last such line counts.

    Args:
        agent: who is asked.
        question: what it is asked; `{task}`, `{solution}`, and `{steps}`, the numbered steps.

    Example:
        >>> from agentrl_core.recipes.intervention import OwnProposal
        >>> OwnProposal().agent
        'policy'
    """

    agent: str = option("policy", filled=True)
    question: str = option(
        "An attempt at this task failed. Compare it with the solution, and give one line `number: text`: the first bad "
        "step, and what should be said there instead, without the answer.\n\n"
        "Task:\n{task}\n\nSolution:\n{solution}\n\nSteps:\n{steps}",
        filled=True,
    )

    async def locate(self, group: Group, branch: Branch) -> ErrorLocation | None:
        """The step that it names, with the intervention."""
        steps = reasoning_steps(branch)
        told = "\n\n".join(f"{step.number + 1}: {step.text}" for step in steps)
        question = fill_template(self.question, group, [branch]).replace("{steps}", told)
        answer = await ask_agent(group, question, agent=self.agent, about=branch)
        named = re.findall(r"^\s*(\d+)\s*:\s*(\S.*)$", answer, re.MULTILINE)
        if not named or not 1 <= int(named[-1][0]) <= len(steps):
            return None
        number = int(named[-1][0]) - 1
        return ErrorLocation(steps[number], number / len(steps), named[-1][1].strip())


@dataclass(frozen=True)
class Intervene(Repair):
    """Keeps an intervention that some continuation of it shows to be right; it alone is trained, the others only vote.

    Args:
        continuations: how many are tried.
        tokens: the most tokens of an intervention.
        reveals: a regular expression that no intervention may match; empty: any may.

    Example:
        >>> from agentrl_core.recipes.intervention import Intervene
        >>> Intervene().continuations
        32
    """

    locator: ErrorLocator = OwnProposal()
    at_most: int = option(1 << 30, at_least=1)
    continuations: int = option(32, at_least=1)
    tokens: int = option(199, at_least=1)
    reveals: str = ""

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The first round; then interventions, and nothing else that is trained."""
        members = await super().next_round(group, rounds)
        for branch in rounds[0].branches if rounds else []:
            branch.mask("not imitated")
        return members

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """Fork, intervene, and try so many continuations."""
        if self.reveals and re.search(self.reveals, fault.advice):
            return False
        mended = branch.fork(at=fault.step.begin)
        before = len(mended.tokens)
        mended.write(fault.advice, ends=False)
        end = len(mended.tokens)
        if end - before > self.tokens:
            group.drop([mended], "too long")
            return False
        tried = await group.run(mended.fork_many(self.continuations, at=mended.position(end)))
        helped = bool((await group.score(self.column, tried) > self.solved_above).any())
        group.drop(tried, "a continuation")
        if helped:
            mended.finish(reward=1.0, success=True)
        else:
            group.drop([mended], "did not help")
        return helped


INTERVENTION = Recipe(
    name="intervention",
    source="arXiv:2601.14209",
    rollout=Intervene(column="success"),
    advantage=GroupRelative(),
    loss=Imitation(aggregate="token_mean"),
)
