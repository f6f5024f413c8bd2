"""SCOPE: let a teacher continue a failure from its first bad step, if that step is late (arXiv:2602.24110).

In groups of which less than half succeeded, one failure is repaired: the first one with t / T >= 0.5, if step t of T
is its first bad one, or the next such failure if the repair does not succeed. The repaired rollout is the policy's
text before the first step that a process reward model scores below 0.5, continued by the agent `teacher`. If it
succeeds it replaces the failure, else it is dropped. Tokens of the teacher have the factor p / (p + 0.1) instead of a
ratio. A failure whose first step is bad is not repaired.

Equations:
    Read: the paper's abstract, and notes of others, which propose the numbers.

    - N1, first error: `FirstBadStep(threshold=0.5)`.
    - N2, repaired rollout: `TeacherContinuation`, in the place of the failure.
    - N3, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - N4, weights of foreign tokens: `Policy(expert=Expert(0.1))`; a teacher's own probabilities are not recorded.

Differs:
    - Repair beside the failure: the notes leave open whether the repair replaces the failure; here it does.
    - Weights by the teacher's density, min(p / p_teacher, 2), in the notes if the density is known; not used here.
    - Clip range, KL: not stated; 0.2 and none here.

Needs: the agents judge (the process reward model) and teacher; `recomputed_logprob`, by the policy before the first
update.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Expert, Policy
from agentrl_core.rollout import (
    Branch,
    ErrorLocation,
    ErrorLocator,
    Group,
    JudgeLocator,
    Repair,
    ask_agent,
    fill_template,
)
from agentrl_core.weight import ExpertMask


@dataclass(frozen=True)
class FirstBadStep(JudgeLocator):
    """Locate the first bad step as `JudgeLocator` does, but count this step t of T in the share: t / T.

    Example:
        >>> from agentrl_core.recipes.scope import FirstBadStep
        >>> FirstBadStep().threshold
        0.5
    """

    async def locate(self, group: Group, branch: Branch) -> ErrorLocation | None:
        """Return the first step below the threshold; None if there is none, or if it is the first of all steps."""
        location = await super().locate(group, branch)
        if location is None or not location.step.number:
            return None
        return location._replace(share=location.share * (location.step.number + 1) / location.step.number)


@dataclass(frozen=True)
class TeacherContinuation(Repair):
    """Let a teacher continue a failure from its first bad step.

    Args:
        teacher: name of the agent of the collector that continues.
        question: prompt template; `{task}` and `{solution}` as in `recipes.agent_rlvr.AgentHint`, `{attempt}` is the
            text before the bad step.

    Example:
        >>> from agentrl_core.recipes.scope import TeacherContinuation
        >>> TeacherContinuation().at_most
        1
    """

    locator: ErrorLocator = FirstBadStep()
    rate_below: float = option(0.5, at_least=0)
    share_at_least: float = option(0.5, at_least=0, at_most=1)
    teacher: str = option("teacher", filled=True)
    question: str = option("Go on with this solution to its end.\n\nTask:\n{task}\n\nSo far:\n{attempt}", filled=True)

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """Fork at the bad step, insert the teacher's text, and return whether the repaired rollout succeeds."""
        mended = branch.fork(at=fault.step.begin)
        text = await ask_agent(group, fill_template(self.question, group, [mended]), agent=self.teacher, about=branch)
        if text:
            mended.write(text)
            await mended.submit()
            await group.run([] if mended.over else [mended])
        scores = await group.score(self.column, [mended])
        if text and scores[0] > self.solved_above:
            group.drop([branch], "replaced by its repair")
            return True
        group.drop([mended], "did not help")
        return False


SCOPE = Recipe(
    name="scope",
    source="arXiv:2602.24110",
    rollout=TeacherContinuation(column="success"),
    advantage=GroupRelative(),
    weight=ExpertMask(),
    loss=Policy(expert=Expert(0.1)),
    old_logprob="recomputed",
)
