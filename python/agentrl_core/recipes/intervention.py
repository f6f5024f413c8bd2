"""InT: let the policy find the first error of its failed attempt, and propose a step to replace it.

For each failure, the policy is prompted with the right solution; it names the first bad step and writes an intervention
of less than 200 tokens. The attempt's text before that step, followed by the intervention, is imitated if at least one
of 32 continuations succeeds. The continuations, which are all the text after the intervention, are not imitated. This
is the supervised stage before reinforcement learning, which is GRPO on the same tasks and not part of this recipe. To
reject interventions that give the answer away, set the pattern `reveals`; it is empty by default.

Equations:
    Read: the abstract, the beginning of the project page, the README of the code, and notes of readers of the paper;
    its text was not read.

    - P1, target: `Intervene`: the text before the first error and the intervention, all of it trained.
    - N1, fine-tuning loss: `Imitation("token_mean")`.
    - N2, filter: `Intervene`: 32 continuations, at most 199 tokens, and `reveals`.
    - N3, after it: left out: the later stage is the recipe `grpo`, on tasks that the base model never solves.

Differs:
    - Prefix: imitated together with the intervention, as in the abstract and the README; the caption on the project
      page names only the intervention.
    - Length: according to a note, most interventions have less than 200 tokens; the note does not call this a filter.
      Here longer ones are rejected (`tokens`).
    - Epochs: 4 over about 1100 targets in the notes; here set by the training loop.
    - Interventions that give the answer away: found by a pattern, `reveals`, here; the notes do not state how.

Source: InT: Self-Proposed Interventions (arXiv:2601.14209). Needs: `Task.solution`, and a model that can write
`number: text`. A model that cannot, such as the small one of `agentrl train`, proposes nothing, so nothing is imitated.
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
    """Prompt the policy with the solution, to find the bad step of an attempt and a replacement for it.

    The answer must contain a line with the number of a step, a colon and the text of the intervention; the last such
    line counts.

    Args:
        agent: name of the prompted agent.
        question: prompt template, with `{task}`, `{solution}`, and `{steps}`, the numbered steps.

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
        """Return the step that the agent names, with the intervention; None if no step can be read."""
        steps = reasoning_steps(branch)
        numbered = "\n\n".join(f"{step.number + 1}: {step.text}" for step in steps)
        question = fill_template(self.question, group, [branch]).replace("{steps}", numbered)
        answer = await ask_agent(group, question, agent=self.agent, about=branch)
        named = re.findall(r"^\s*(\d+)\s*:\s*(\S.*)$", answer, re.MULTILINE)
        if not named or not 1 <= int(named[-1][0]) <= len(steps):
            return None
        number = int(named[-1][0]) - 1
        return ErrorLocation(steps[number], number / len(steps), named[-1][1].strip())


@dataclass(frozen=True)
class Intervene(Repair):
    """Keep interventions that have a successful continuation; only these are trained, first-round rollouts only vote.

    Args:
        continuations: number of continuations that are tried for an intervention.
        tokens: largest number of tokens of an intervention.
        reveals: regular expression; an intervention that matches it is rejected; empty: none is rejected.

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
        """Return the first round; after it, run interventions, and exclude the first round from training."""
        members = await super().next_round(group, rounds)
        for branch in rounds[0].branches if rounds else []:
            branch.mask("not imitated")
        return members

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """Fork before the error, write the intervention, and return whether a continuation of it succeeds."""
        if self.reveals and re.search(self.reveals, fault.advice):
            return False
        mended = branch.fork(at=fault.step.begin)
        before = len(mended.tokens)
        mended.write(fault.advice, ends=False)
        end = len(mended.tokens)
        if end - before > self.tokens:
            group.drop([mended], "too long")
            return False
        continuations = await group.run(mended.fork_many(self.continuations, at=mended.position(end)))
        helped = bool((await group.score(self.column, continuations) > self.solved_above).any())
        group.drop(continuations, "a continuation")
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
