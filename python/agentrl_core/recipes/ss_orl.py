"""SS-ORL: infer the actions of recordings without actions, and train on them.

Of some tasks it is recorded what was seen and done (`Task.solution`), of others only what was seen. A second model, the
policy `inverse`, learns from the first kind which action led from one observation to the next, given what was seen just
before, too:

    p(a_t | o_{t-past}, .., o_t, o_{t+1}),    L_inverse = - mean over tokens of labelled actions of log p

Then it fills in the actions of the second kind, and the policy is trained on both by an offline loss. The paper tries
CQL, TD3BC and decision transformers; here a trajectory is imitated as much as it was paid:

    L = - sum of max(r, 0) log p / number of tokens

The environment answers every action with what was recorded, and ends with the recording; it is rolled out once without
actions where they are not known, to see what follows. Actions are compared with nobody: groups have one member. The
inverse model is trained for 100 iterations, then the policy, on recordings whose actions the inverse model, frozen from
then on, fills in. 100 is a proposal.

Equations:
    Read: the authors' code, and the abstract.

    - C1, which trajectories are labelled: left out: the data have their actions or have not.
    - C2, input of the inverse model: `Imputed.asked`, `past=1`; texts are neither padded nor normalised.
    - C3, loss of the inverse model: `Imitation("token_mean")` of the model `inverse`.
    - C4, proxy label: left out: a mean over models is of numbers; one model's answer is the action, as in the code's
      default of one model.
    - C5, critics: left out: of TD3+BC, one of three offline algorithms of the paper; returns weigh the imitation here.
    - C6, actor: left out: it follows the gradient of Q by a continuous action, which a text does not have.

Differs:
    - Discount: 0.99 in the critics of the code; a trajectory is weighed by its return without discount here.
    - Labels: filled in once in the paper; each time that a recording is drawn here, by the same frozen model.
    - Inverse model: that with the best validation loss in the paper; the last one here.

Source: Semi-Supervised Offline Reinforcement Learning with Action-Free Trajectories, arXiv:2210.06518.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where, option
from agentrl_core.env import ExtraColumn, as_messages
from agentrl_core.loss import Imitation, Train
from agentrl_core.rollout import Branch, Group, Rollout, ask_agent
from agentrl_core.schedule import FreezeModel


@dataclass(frozen=True)
class Imputed(Rollout):
    r"""Recordings as trajectories, with the actions that they have or that a model fills in.

    The draw column `imputed` is 1 if the model did, `inverse` is 1 for what the model itself is trained on.

    Args:
        past: how many observations before the last one the model sees.
        agent: who is asked for actions.
        question: what it is asked: `{seen}` is what was seen, `{next}` what was seen after the action.
        nothing: the action with which a recording is looked at.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ss_orl import Imputed
        >>> Imputed(past=1).asked(["a door", "a room", "a key", "the end"], 2)
        'Seen:\na room\na key\n\nThen:\nthe end\n\nWhat was done in between?'
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {
        "imputed": ExtraColumn("trajectory"),
        "inverse": ExtraColumn("trajectory"),
    }

    past: int = option(1, at_least=0)
    agent: str = option("inverse", filled=True)
    question: str = option("Seen:\n{seen}\n\nThen:\n{next}\n\nWhat was done in between?", filled=True)
    nothing: str = option("?", filled=True)

    def asked(self, seen: Sequence[str], step: int) -> str:
        """The question for the action between two observations; behind the last one there is nothing."""
        before = "\n".join(seen[max(step - self.past, 0) : step + 1])
        after = seen[step + 1] if step + 1 < len(seen) else ""
        return self.question.replace("{seen}", before).replace("{next}", after)

    async def group(self, group: Group) -> None:
        """One trajectory, and the questions that it answers."""
        actions, labelled = list(group.task.solution), bool(group.task.solution)
        if not labelled:
            seen = await self.looked_at(group)
            actions = [await ask_agent(group, self.asked(seen, step), agent=self.agent) for step in range(len(seen))]
        origin: Literal["expert", "imported"] = "expert" if labelled else "imported"
        [branch] = await group.run(
            [group.start(origin=origin, facts={"imputed": float(not labelled), "inverse": 0.0})],
            lambda branch: _taken(branch, actions),
        )
        seen = _seen(branch)
        for step, turn in enumerate(branch.turns if labelled else ()):
            task = replace(group.task, task_id=f"{group.task.task_id}/action {step}")
            program = _Answered(question=self.asked(seen, step), answer=turn.text, agent=self.agent)
            await group.spawn(task, program=program, parent=branch)

    async def looked_at(self, group: Group) -> list[str]:
        """The observations of a recording, one text before each action."""
        branch = group.start(role="helper")
        while not branch.over:
            await branch.turn(self.nothing)
        return _seen(branch)

    def final_group_size(self, group_size: int) -> int:
        """One, whatever was asked for."""
        del group_size
        return 1


@dataclass(frozen=True)
class _Answered(Rollout):
    """A question whose answer is known, which the environment does not see."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = Imputed.facts

    question: str = ""
    answer: str = ""
    agent: str = option("inverse", filled=True)

    async def group(self, group: Group) -> None:
        """The question, and its answer."""
        facts = {"imputed": 0.0, "inverse": 1.0}
        await group.run([group.start(self.question, agent=self.agent, origin="expert", facts=facts)])

    async def branch(self, branch: Branch) -> None:
        """The one action; it is as good as it gets."""
        await branch.begin()
        branch.write(self.answer)
        branch.finish(reward=1.0, success=True)


async def _taken(branch: Branch, actions: Sequence[str]) -> None:
    """The actions, as far as the recording goes."""
    for action in actions:
        if not branch.over:
            await branch.turn(action)


def _seen(branch: Branch) -> list[str]:
    """The observation before each action."""
    told = [branch.prompt_messages, *(turn.observation for turn in branch.turns[:-1])]
    return [str(as_messages(each or "")[-1]["content"]) for each in told]


INVERSE, RECORDED = Where(column="inverse", at_least=0.5), Where(column="inverse", at_most=0.5)

SS_ORL = Recipe(
    name="ss_orl",
    source="arXiv:2210.06518",
    rollout=Imputed(),
    advantage=GroupRelative(singleton="raw"),
    loss=(
        Train(Imitation("token_mean"), "inverse", where=INVERSE),
        Train(Imitation("token_mean", tokens="advantage"), where=RECORDED),
    ),
    hooks=(FreezeModel("policy", until=101), FreezeModel("inverse", since=101)),
)
