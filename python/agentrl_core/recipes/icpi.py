"""ICPI: policy iteration in a prompt: imagine what each action leads to, and take the best one (arXiv:2210.03821).

The weights do not change. Before each turn a model imagines the results of each action. As the world (agent `world`) it
predicts with three prompts whether the episode ends, then the reward, then the next observation. Each prompt shows past
transitions with the same action; the prompts for reward and observation show only transitions with the predicted end or
non-end. The prompt for the end has as many transitions that end as others, and the prompt for the reward as many of
each reward. As the policy (agent `rollout`), the model is shown pieces of the last 8 episodes and predicts the next
action. With these predictions,

    Q(s, a) = sum_u gamma^u r_u,   and the turn is argmax_a Q, ties by chance.

Real transitions are stored when the iteration is closed. The newest episodes make the imagined policy follow the greedy
one, which is policy iteration. Until every action was taken, each turn is a random action; later a turn is random with
probability 1 - 1 / (1 + exp(2 (3 - n))), n the number of shown episodes. An answer that cannot be read is sampled
again. After three such answers of the world the imagined episode ends; after three of the policy a random action is
taken.

Equations:
    Read: the public code, a chapter of an author's thesis with the paper's method and its two algorithms, and notes;
    not the experiments.

    - C1, value: `Imagine.value`.
    - C2, greedy action: `Imagine.branch`.
    - C3, prompts: `Imagine.balanced`; without classes for the observation, as in the chapter.
    - C4, model or chance: `Imagine.chance_of_model`, per turn.
    - C5, window: `Imagine.window`, `successes=8`; every episode counts, as in the chapter and with `sil` off.
    - P2, prompts of the world: `Imagine.value`.
    - P1, pieces of trajectories: `Imagine.piece`, with random begin and end.

Differs:
    - Turns by chance: as in the code; the chapter's algorithm always takes the best action.
    - Examples: at most the newest five of each class, in alternation, with examples of a rare class repeated; the
      chapter has random ones, shuffled, up to the limit of the context.
    - Depth: one for each environment in the code, none in the chapter, 8 here.
    - Temperature: 0.1 in the code; here the temperature of the agents' engines.

Needs: `Imagine(actions=...)`, the actions of the environment. With other actions, such as the default yes and no in
`agentrl train`, all members get the same reward.

There is nothing to update: collect, and call `Collector.end_iteration(batch, {})`. If you train as well, the loss is
GRPO on the actions that were taken, with recomputed log-probs, because no model sampled these actions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, TextMemory, ask_agent, read_notes

_ANSWERS = {
    "done": re.compile(r"\s*(yes|no)\b", re.IGNORECASE),
    "reward": re.compile(r"\s*([-+]?\d+(?:\.\d+)?)\s*(?:$|;)"),
    "next": re.compile(r"\s*(\S.*)"),
}
"""Pattern that an answer of the world must start with, for each prediction."""


class _Transition(NamedTuple):
    """Action of an episode, with the observations before and after it, its reward, and whether it ended the episode."""

    before: str
    action: str
    reward: float
    done: bool
    after: str

    def line(self, predicted: str) -> str:
        """Return the line of a prompt that shows this transition, for one of the predictions."""
        outcome = {"done": "yes" if self.done else "no", "reward": f"{self.reward:g}", "next": self.after}
        return f"{_question(self.before, self.action, predicted)} {outcome[predicted]}"


@dataclass(frozen=True)
class Imagine(TextMemory):
    """Take the turns that a model imagines to be best, from past transitions in its prompts.

    Args:
        actions: all actions of the environment.
        gamma: discount of imagined and of real rewards, 0 to 1.
        horizon: largest number of steps of an imagined episode.
        successes: largest number of episodes shown to the imagined policy, the newest that count.
        success_above: an episode counts if its return is above this number; None: every episode counts.
        least: number of shown episodes at which a turn is imagined with probability 1/2.
        examples: largest number of transitions of each class that are shown to the imagined world.
        tries: how often an answer is sampled until it can be read, at most.
        capacity: number of episodes kept in memory.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.icpi import Imagine
        >>> Imagine(actions=("go north", "go south", "take coin")).actions
        ('go north', 'go south', 'take coin')
    """

    actions: tuple[str, ...] = option(("yes", "no"), filled=True)
    gamma: float = option(0.8, at_least=0, at_most=1)
    horizon: int = option(8, at_least=1)
    successes: int = option(8, at_least=1)
    success_above: float | None = option(None)
    least: int = option(3, at_least=0)
    examples: int = option(5, at_least=1)
    tries: int = option(3, at_least=1)
    capacity: int = option(1000, at_least=1)

    def initial_state(self) -> State:
        """Return a memory without episodes."""
        return {"episodes": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the memory with the episodes of the iteration added; only the newest `capacity` episodes stay."""
        return {"episodes": [*state["episodes"], *read_notes(closed.finished, "episode")][-self.capacity :]}

    async def group(self, group: Group) -> None:
        """Run the members one after the other, all with the memory as of the start of the iteration."""
        for branch in group.start_many(group.size):
            await self.branch(branch)

    async def branch(self, branch: Branch) -> None:
        """Run an episode of turns chosen by imagined Q values or at random, and note its transitions."""
        group = cast("Group", branch.group)
        known = [[_Transition(*step) for step in episode] for episode in self.recall(group)["episodes"]]
        taken_actions = {step.action for episode in known for step in episode}
        window = self.window(known)
        transitions: list[_Transition] = []
        state = group.prompt
        while not branch.over:
            best = list(self.actions)
            coin = group.uniform("coin", branch.name, len(branch.turns))
            if taken_actions.issuperset(best) and coin < self.chance_of_model(len(window)):
                values = [await self.value(branch, known, state, action) for action in self.actions]
                best = [action for action, value in zip(self.actions, values, strict=True) if value == max(values)]
            chance = group.uniform("tie", branch.name, len(branch.turns))
            turn = await branch.turn(best[int(chance * len(best))])
            after = "" if turn.observation is None else str(turn.observation)
            transitions.append(_Transition(state, turn.text, float(turn.reward or 0.0), branch.over, after))
            state = after
        self.note(group, "episode", [list(each) for each in transitions], branch)

    def chance_of_model(self, shown: int) -> float:
        """Return the probability that imagined Q values choose a turn's action, if the window has `shown` episodes."""
        return 1.0 / (1.0 + math.exp(2.0 * (self.least - shown)))

    def discounted(self, rewards: Sequence[float]) -> float:
        """Return the discounted sum of rewards."""
        return sum(self.gamma**place * reward for place, reward in enumerate(rewards))

    def window(self, known: Sequence[Sequence[_Transition]]) -> list[Sequence[_Transition]]:
        """Return the newest episodes that count, at most `successes` of them, oldest first."""
        threshold = -math.inf if self.success_above is None else self.success_above
        good = [each for each in known if self.discounted([step.reward for step in each]) > threshold]
        return good[-self.successes :]

    @staticmethod
    def piece(episode: Sequence[_Transition], begin: float, end: float) -> Sequence[_Transition]:
        """Return a piece of an episode, at least one step long, from two numbers between 0 and 1."""
        first = int(begin * len(episode))
        return episode[first : first + 1 + int(end * (len(episode) - first))]

    async def value(self, branch: Branch, known: Sequence[Sequence[_Transition]], state: str, action: str) -> float:
        """Return the Q value of an action: the discounted sum of the rewards of imagined steps."""
        key = (branch.name, len(branch.turns), action)
        rewards: list[float] = []
        for imagined in range(self.horizon):
            similar = [each for episode in known for each in episode if each.action == action]
            done = await self._predicted(branch, "done", self.balanced(similar, lambda each: each.done), state, action)
            if done is None:
                break
            ends = done.lower() == "yes"
            similar = [each for each in similar if each.done == ends]
            reward = await self._predicted(
                branch, "reward", self.balanced(similar, lambda each: each.reward), state, action
            )
            if reward is None:
                break
            rewards.append(float(reward))
            if ends or imagined + 1 == self.horizon:
                break
            after = await self._predicted(branch, "next", self.balanced(similar, lambda _: True), state, action)
            if after is None:
                break
            state = after.strip()
            action = await self._followed(branch, known, state, (*key, imagined))
        return self.discounted(rewards)

    async def _followed(
        self, branch: Branch, known: Sequence[Sequence[_Transition]], state: str, key: tuple[Any, ...]
    ) -> str:
        """Return the next action of the imagined policy, a random one if no answer is an action."""
        group = cast("Group", branch.group)
        pieces = [
            self.piece(episode, group.uniform("begin", *key, place), group.uniform("end", *key, place))
            for place, episode in enumerate(self.window(known))
        ]
        order = sorted(range(len(pieces)), key=lambda place: group.uniform("order", *key, place))
        texts = ("\n".join(f"state: {step.before}; action: {step.action}" for step in pieces[place]) for place in order)
        question = "\n\n".join([*texts, f"state: {state}; action:"])
        for _ in range(self.tries):
            action = (await self._ask(branch, "rollout", question)).strip()
            if action in self.actions:
                return action
        return self.actions[int(group.uniform("action", *key) * len(self.actions))]

    async def _predicted(
        self, branch: Branch, predicted: str, examples: Sequence[_Transition], state: str, action: str
    ) -> str | None:
        lines = [each.line(predicted) for each in examples]
        question = "\n".join([*lines, _question(state, action, predicted)])
        for _ in range(self.tries):
            answer = _ANSWERS[predicted].match(await self._ask(branch, "world", question))
            if answer is not None:
                return answer[1]
        return None

    def balanced(self, seen: Sequence[_Transition], by: Callable[[_Transition], object]) -> list[_Transition]:
        """Return the same number of transitions from each class, alternating between the classes.

        Transitions of a rare class are repeated until it has as many as the most frequent one.
        """
        classes: dict[object, list[_Transition]] = {}
        for each in seen:
            classes.setdefault(by(each), []).append(each)
        newest = [places[-self.examples :] for places in classes.values()]
        most = max(map(len, newest), default=0)
        return [each[place % len(each)] for place in range(most) for each in newest]

    async def _ask(self, branch: Branch, agent: str, question: str) -> str:
        return await ask_agent(cast("Group", branch.group), question, agent=agent, about=branch)


def _question(state: str, action: str, predicted: str) -> str:
    return f"state: {state}; action: {action}; {predicted}:"


ICPI = Recipe(
    name="icpi",
    source="arXiv:2210.03821",
    rollout=Imagine(),
    advantage=GroupRelative(),
    loss=Policy(),
    old_logprob="recomputed",
)
