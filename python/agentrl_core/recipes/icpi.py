"""ICPI: policy iteration in a prompt: actions are tried in words, and the best one is taken (arXiv:2210.03821).

No weight changes. Before each turn a model imagines what each of the actions leads to. As the world (agent `world`) it
is shown transitions of the past with the same action, as many of each outcome, and predicts reward, end and next
observation; as the policy (agent `rollout`) it is shown the last 8 successful episodes, and predicts the next action.
With these predictions,

    Q(s, a) = sum_u gamma^u r_u,   and the turn is argmax_a Q, ties by chance.

Real transitions are stored when the iteration is closed. The newest successes make the imagined policy follow the
greedy one, which is policy iteration. Until every action was taken, and with probability 1 - 1 / (1 + exp(2 (3 - n)))
of n successes shown, the turn is an action by chance. An answer that cannot be read is sampled again, at the third the
imagined episode ends; an action that there is not is replaced by one by chance.

Equations:
    Read: the public code and notes; not the paper's text.

    - C1, value: `Imagine.value`.
    - C2, greedy action: `Imagine.branch`.
    - C3, prompts: `Imagine.balanced`.
    - C4, model or chance: `Imagine.chance_of_model`, per turn.
    - C5, window: `Imagine.window`, `successes=8`.

Differs:
    - Prompts: the code asks for end, reward and next state in three prompts with classes of their own; here they are
      one line, whose classes are reward and end.
    - Examples: of each class the newest five at most here; the code has a limit of five prompts, whose use was not
      read.
    - Pieces: the code shows pieces of the successful trajectories; here they are whole.
    - Depth: one for each environment in the code, 8 here.
    - Success: a return above a threshold of each environment in the code; above 0 here.
    - Temperature: 0.1 in the code; here that of the agents' engines.

Needs: `Imagine(actions=...)`, the actions of the environment. With others, such as the `yes|no` that stand there in
`agentrl train`, all members are paid alike.

There is nothing to update: collect, and call `Collector.end_iteration(batch, {})`. Whoever trains as
well has GRPO on the actions that were taken, with recomputed log-probs, as nobody sampled them.
"""

from __future__ import annotations

import math
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
        gamma: discount of imagined and of real rewards, 0 to 1.
        horizon: steps of an imagined episode, at most.
        successes: the newest successful episodes that the imagined policy is shown.
        success_above: the return above which an episode is successful.
        least: the number of successes at which a turn is imagined with probability 1/2.
        examples: transitions of each outcome that the imagined world is shown, at most.
        tries: of an answer that cannot be read.
        capacity: episodes that are remembered.

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
    successes: int = option(8, at_least=1)
    success_above: float = 0.0
    least: int = option(3, at_least=0)
    examples: int = option(5, at_least=1)
    tries: int = option(3, at_least=1)
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
        taken = {step.action for episode in known for step in episode}
        shown = self.window(known)
        seen: list[_Transition] = []
        state = group.prompt
        while not branch.over:
            best = list(self.choices)
            coin = group.uniform("coin", branch.name, len(branch.turns))
            if taken.issuperset(best) and coin < self.chance_of_model(len(shown)):
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

    def chance_of_model(self, successes: int) -> float:
        """Return the probability of an imagined turn, with so many successful episodes."""
        return 1.0 / (1.0 + math.exp(2.0 * (self.least - successes)))

    def discounted(self, rewards: Sequence[float]) -> float:
        """Return the discounted sum of rewards."""
        return sum(self.gamma**place * reward for place, reward in enumerate(rewards))

    def window(self, known: Sequence[Sequence[_Transition]]) -> list[Sequence[_Transition]]:
        """Return the newest successful episodes, oldest first."""
        good = [each for each in known if self.discounted([step.reward for step in each]) > self.success_above]
        return good[-self.successes :]

    async def value(self, branch: Branch, known: Sequence[Sequence[_Transition]], state: str, action: str) -> float:
        """Q of an action, imagined."""
        group = cast("Group", branch.group)
        seen = [each for episode in known for each in episode]
        key = (branch.name, len(branch.turns), action)
        shown = {
            place: "\n".join(f"state: {step.before}; action: {step.action}" for step in each)
            for place, each in enumerate(self.window(known))
        }
        rewards: list[float] = []
        for imagined in range(self.horizon):
            lines = "\n".join(each.told for each in self.balanced(seen, action))
            said = await self._predicted(branch, f"{lines}\nstate: {state}; action: {action};")
            if said is None:
                break
            rewards.append(float(said[1]))
            if said[2].lower() == "yes" or imagined + 1 == self.horizon:
                break
            state = said[3].strip()
            order = sorted(shown, key=lambda place: group.uniform("order", *key, imagined, place))
            lines = "\n\n".join(shown[place] for place in order)
            action = (await self._ask(branch, "rollout", f"{lines}\n\nstate: {state}; action:")).strip()
            if action not in self.choices:
                action = self.choices[int(group.uniform("action", *key, imagined) * len(self.choices))]
        return self.discounted(rewards)

    async def _predicted(self, branch: Branch, question: str) -> re.Match[str] | None:
        for _ in range(self.tries):
            said = _SAID.search(await self._ask(branch, "world", question))
            if said is not None:
                return said
        return None

    def balanced(self, seen: Sequence[_Transition], action: str) -> list[_Transition]:
        """Return transitions with an action, as many of each outcome (reward and end), class after class in turn.

        Those of a rare outcome are repeated until there are as many as of the most frequent one.
        """
        classes: dict[tuple[float, bool], list[_Transition]] = {}
        for each in seen:
            if each.action == action:
                classes.setdefault((each.reward, each.done), []).append(each)
        newest = [places[-self.examples :] for places in classes.values()]
        most = max(map(len, newest), default=0)
        return [each[place % len(each)] for place in range(most) for each in newest]

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
