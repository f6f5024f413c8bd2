"""ICPI: policy iteration in a prompt: actions are tried in words, and the best one is taken (arXiv:2210.03821).

No weight changes. Before each turn a model imagines what each of the actions leads to. As the world (agent `world`) it
is shown transitions of the past with the same action, as many of each outcome, and predicts reward, end and next
observation; as the policy (agent `rollout`) it is shown the newest episodes, and predicts the next action. With these
predictions,

    Q(s, a) = sum_u gamma^u r_u,   and the turn is argmax_a Q, ties by chance.

Real transitions are stored when the iteration is closed. The newest episodes make the imagined policy follow
the greedy one, which is policy iteration. An action that was never taken is worth `optimism`; what cannot be read ends
the imagined episode there. The paper asks for end, reward and next state in three prompts, here they are one line. Its
numbers are not known here: 10 episodes, gamma 0.8 and 8 imagined steps are proposals.

Needs: `Imagine(actions=...)`, the actions of the environment. With others, such as the `yes|no` that stand there in
`agentrl train`, all members are paid alike.

There is nothing to update: collect, and call `Collector.end_iteration(batch, {})`. Whoever trains as
well has GRPO on the actions that were taken, with recomputed log-probs, as nobody sampled them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, TextMemory, ask_agent, read_notes

_SAID = re.compile(r"reward:\s*([-+]?\d+(?:\.\d+)?)\s*;\s*done:\s*(yes|no)\s*;\s*next:\s*(.*)", re.IGNORECASE)


class _Transition(NamedTuple):
    """Outcome of an action."""

    before: str
    action: str
    reward: float
    done: bool
    after: str

    @property
    def told(self) -> str:
        """It as a line of a prompt."""
        outcome = f"reward: {self.reward:g}; done: {'yes' if self.done else 'no'}; next: {self.after}"
        return f"state: {self.before}; action: {self.action}; {outcome}"


@dataclass(frozen=True)
class Imagine(TextMemory):
    """Turns that are the best of what a model imagines, from what was seen before.

    Args:
        actions: all there are, joined by `|`.
        gamma: discount of imagined rewards, 0 to 1.
        horizon: steps of an imagined episode, at most.
        episodes: the newest ones that the imagined policy is shown.
        examples: transitions that the imagined world is shown.
        optimism: the value of an action that was never taken.
        capacity: transitions, and episodes, that are remembered.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.icpi import Imagine
        >>> Imagine(actions="go north|go south|take coin").choices
        ('go north', 'go south', 'take coin')
    """

    actions: str = option("yes|no", filled=True)
    gamma: float = option(0.8, at_least=0, at_most=1)
    horizon: int = option(8, at_least=1)
    episodes: int = option(10, at_least=1)
    examples: int = option(8, at_least=1)
    optimism: float = 1.0
    capacity: int = option(1000, at_least=1)

    def initial_state(self) -> State:
        """Nothing was seen."""
        return {"episodes": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """The episodes of the iteration are remembered."""
        return {"episodes": [*state["episodes"], *read_notes(closed.finished, "episode")][-self.capacity :]}

    async def group(self, group: Group) -> None:
        """Members one after the other: each imagines with what is remembered as of the iteration's begin."""
        for branch in group.start_many(group.size):
            await self.branch(branch)

    async def branch(self, branch: Branch) -> None:
        """An episode of greedy turns."""
        group = cast("Group", branch.group)
        known = [[_Transition(*step) for step in episode] for episode in self.recall(group)["episodes"]]
        seen: list[_Transition] = []
        state = group.prompt
        while not branch.over:
            values = [await self.value(branch, known, state, action) for action in self.choices]
            best = [action for action, value in zip(self.choices, values, strict=True) if value == max(values)]
            chance = group.uniform("tie", branch.name, len(branch.turns))
            turn = await branch.turn(best[int(chance * len(best))])
            after = "" if turn.observation is None else str(turn.observation)
            seen.append(_Transition(state, turn.text, float(turn.reward or 0.0), branch.over, after))
            state = after
        self.note(group, "episode", [list(each) for each in seen], branch)

    @property
    def choices(self) -> tuple[str, ...]:
        """The actions."""
        return tuple(self.actions.split("|"))

    async def value(self, branch: Branch, known: Sequence[Sequence[_Transition]], state: str, action: str) -> float:
        """Q of an action, imagined."""
        seen = [each for episode in known for each in episode]
        if not any(each.action == action for each in seen):
            return self.optimism
        total, discount = 0.0, 1.0
        for imagined in range(self.horizon):
            examples = self.balanced(seen, action)
            if not examples:
                break
            lines = "\n".join(each.told for each in examples)
            said = _SAID.search(await self._ask(branch, "world", f"{lines}\nstate: {state}; action: {action};"))
            if said is None:
                break
            total, discount = total + discount * float(said[1]), discount * self.gamma
            if said[2].lower() == "yes" or imagined + 1 == self.horizon:
                break
            state = said[3].strip()
            episodes = known[-self.episodes :]
            shown = "\n\n".join("\n".join(f"state: {e.before}; action: {e.action}" for e in each) for each in episodes)
            action = (await self._ask(branch, "rollout", f"{shown}\n\nstate: {state}; action:")).strip()
            if action not in self.choices:
                break
        return total

    def balanced(self, seen: Sequence[_Transition], action: str) -> list[_Transition]:
        """The newest transitions with an action, as many of each outcome (reward and end) as can be, in their order."""
        classes: dict[tuple[float, bool], list[int]] = {}
        for place, each in enumerate(seen):
            if each.action == action:
                classes.setdefault((each.reward, each.done), []).append(place)
        ranks = sorted((rank, -place) for places in classes.values() for rank, place in enumerate(reversed(places)))
        return [seen[place] for place in sorted(-place for _, place in ranks[: self.examples])]

    async def _ask(self, branch: Branch, agent: str, question: str) -> str:
        return await ask_agent(cast("Group", branch.group), question, agent=agent, about=branch)


ICPI = Recipe(
    name="icpi",
    source="arXiv:2210.03821",
    rollout=Imagine(),
    advantage=GroupRelative(),
    loss=Policy(),
    old_logprob="recomputed",
)
