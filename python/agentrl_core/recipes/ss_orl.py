"""SS-ORL: infer the actions of recordings without actions, and train on them.

Some tasks have a recording of observations and actions (`Task.solution`), others a recording of observations only. A
second model, the policy `inverse`, learns from the first kind which action led from one observation to the next, given
the preceding observations too:

    p(a_t | o_{t-past}, .., o_t, o_{t+1}),    L_inverse = - mean over tokens of labelled actions of log p

Then it fills in the actions of the second kind, and the policy is trained on both kinds by an offline loss. The paper
tries CQL, TD3BC and decision transformers; here each trajectory is imitated in proportion to its return:

    L = - sum of max(r, 0) log p / number of tokens

The environment returns the recorded observation after every action, and ends with the recording. A recording without
actions is first rolled out once with placeholder actions, to read its observations. Trajectories are not compared:
groups have one member. The inverse model is trained for 100 iterations and then frozen. After that the policy is
trained, on recordings whose actions the inverse model fills in. 100 is our proposal.

Equations:
    Read: the authors' code, and the abstract.

    - C1, which trajectories are labelled: left out: the data either have actions or do not.
    - C2, input of the inverse model: `ImputedActions.question_of`, `past=1`; texts are neither padded nor normalised.
    - C3, loss of the inverse model: `Imitation("token_mean")` of the model `inverse`.
    - C4, proxy label: left out: a mean over models requires numbers; here the action is the response of one model, as
      in the code's default of one model.
    - C5, critics: left out: part of TD3+BC, one of three offline algorithms of the paper; returns weight the imitation
      here.
    - C6, actor: left out: it follows the gradient of Q with respect to a continuous action, which a text does not have.

Differs:
    - Discount: 0.99 in the critics of the code; here a trajectory is weighted by its return without discount.
    - Labels: filled in once in the paper; each time a recording is drawn here, by the same frozen model.
    - Inverse model: the one with the best validation loss in the paper; the last one here.

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
class ImputedActions(Rollout):
    r"""Turn recordings into trajectories, with recorded actions or with actions that an inverse model fills in.

    The draw column `imputed` is 1 if the inverse model filled in the actions. `inverse` is 1 for draws that train this
    model.

    Args:
        past: number of observations before the current one that the inverse model sees.
        agent: name of the agent that infers actions.
        question: prompt template of the agent: `{seen}` are the observations before the action, `{next}` the one after
            it.
        nothing: placeholder action for reading the observations of a recording.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ss_orl import ImputedActions
        >>> ImputedActions(past=1).question_of(["a door", "a room", "a key", "the end"], 2)
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

    def question_of(self, seen: Sequence[str], step: int) -> str:
        """Return the prompt for the action after observation `step`; `{next}` is empty after the last observation."""
        before = "\n".join(seen[max(step - self.past, 0) : step + 1])
        after = seen[step + 1] if step + 1 < len(seen) else ""
        return self.question.replace("{seen}", before).replace("{next}", after)

    async def group(self, group: Group) -> None:
        """Roll out one trajectory, and for each recorded action a group that trains the inverse model on it."""
        actions, labelled = list(group.task.solution), bool(group.task.solution)
        if not labelled:
            observations = await self.looked_at(group)
            actions = [
                await ask_agent(group, self.question_of(observations, step), agent=self.agent)
                for step in range(len(observations))
            ]
        origin: Literal["expert", "imported"] = "expert" if labelled else "imported"
        [branch] = await group.run(
            [group.start(origin=origin, facts={"imputed": float(not labelled), "inverse": 0.0})],
            lambda branch: _taken(branch, actions),
        )
        observations = _seen(branch)
        for step, turn in enumerate(branch.turns if labelled else ()):
            task = replace(group.task, task_id=f"{group.task.task_id}/action {step}")
            program = _Answered(question=self.question_of(observations, step), answer=turn.text, agent=self.agent)
            await group.spawn(task, program=program, parent=branch)

    async def looked_at(self, group: Group) -> list[str]:
        """Return the observations of a recording, one text before each action."""
        branch = group.start(role="helper")
        while not branch.over:
            await branch.turn(self.nothing)
        return _seen(branch)

    def final_group_size(self, group_size: int) -> int:
        """Return 1; `group_size` is not used."""
        del group_size
        return 1


@dataclass(frozen=True)
class _Answered(Rollout):
    """Run a branch with a known answer, which is not sent to the environment."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = ImputedActions.facts

    question: str = ""
    answer: str = ""
    agent: str = option("inverse", filled=True)

    async def group(self, group: Group) -> None:
        """Run one branch that starts at the question."""
        facts = {"imputed": 0.0, "inverse": 1.0}
        await group.run([group.start(self.question, agent=self.agent, origin="expert", facts=facts)])

    async def branch(self, branch: Branch) -> None:
        """Write the answer as the only action, and finish with reward 1 and success."""
        await branch.begin()
        branch.write(self.answer)
        branch.finish(reward=1.0, success=True)


async def _taken(branch: Branch, actions: Sequence[str]) -> None:
    """Take the actions in order until the recording ends."""
    for action in actions:
        if not branch.over:
            await branch.turn(action)


def _seen(branch: Branch) -> list[str]:
    """Return the text of the observation before each action."""
    observations = [branch.prompt_messages, *(turn.observation for turn in branch.turns[:-1])]
    return [str(as_messages(each or "")[-1]["content"]) for each in observations]


INVERSE, RECORDED = Where(column="inverse", at_least=0.5), Where(column="inverse", at_most=0.5)

SS_ORL = Recipe(
    name="ss_orl",
    source="arXiv:2210.06518",
    rollout=ImputedActions(),
    advantage=GroupRelative(singleton="raw"),
    loss=(
        Train(Imitation("token_mean"), "inverse", where=INVERSE),
        Train(Imitation("token_mean", tokens="advantage"), where=RECORDED),
    ),
    hooks=(FreezeModel("policy", until=101), FreezeModel("inverse", since=101)),
)
