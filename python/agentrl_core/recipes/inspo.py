"""INSPO: a population of instructions that is learned beside the policy, by trial and by reflection.

Each group is asked its task under one instruction, drawn by p_j = softmax(w_j / 0.1) of those that are alive; w_j <-
0.9 w_j + 0.1 mean reward of its groups. Every 20 iterations the worse half of those with at least 32 rollouts goes,
down to two (`select.PromptBandit`). Before that an agent (`proposer`) reads failures under the best instruction and
writes two candidates for each that may go; the policy tries each candidate in four rollouts of the first group's task,
which are not trained. The candidates of the largest mean rewards take the empty places, with the weight of the best
instruction. Advantages are GRPO's within the group; instructions are context, never trained. Numbers are chosen here:
the paper's are not public. Source: INSPO (agentic policy optimisation by instruction-policy co-evolution),
arXiv:2512.01945.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, choice of an instruction: `Instructed.probabilities`.
    - N2, advantage: `GroupRelative`; a group has one instruction and one task.
    - N3, objective: `Policy`, mean over the policy's tokens of a rollout, then over rollouts; clip range 0.2.
    - N4, weight of an instruction: `Instructed.next`; the mean is over all its groups of an iteration.
    - N5, pruning: `Instructed.worse`.
    - N6, new instructions: `Instructed.propose`.

Differs:
    - Optimizer steps a batch and clip range: not found; 1 and 0.2 here, so the range never acts.
    - Replay buffer: failures are those of the iteration under the best instruction, not of earlier ones.
    - Pruning: an instruction of fewer than 32 rollouts stays, and so do the last two.
    - Tasks of the check: one, that of the first group; what a cheap proxy is in the paper was not read.
    - Weight of a new instruction: the parent's or the mean in the notes; the parent's here.

Needs: a model that reads an instruction in front of the task. The small one that `agentrl train` makes never saw one:
all its answers are paid alike, and nothing is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Rows, State, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Cohort, Group, TextMemory, ask_agent, insert_text, read_notes


@dataclass(frozen=True)
class Instructed(TextMemory):
    """Groups under instructions that live and die by what they bring.

    The draw column `instruction` is the number of a group's.

    Args:
        begin: the first instructions, joined by `|`, at least two.
        temperature: of the softmax.
        rate: how fast a weight follows the rewards.
        every: iterations between two halvings.
        least: rollouts of an instruction before it may go.
        shown: failures that the proposer reads.
        candidates: new instructions that are written for each place.
        tries: rollouts of a candidate.
        template: the prompt: `{text}` is the instruction, `{prompt}` the task.
        question: what the proposer is asked: the `{instruction}` and the `{failures}` under it.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.inspo import Instructed
        >>> program = Instructed(begin="Think.|Search first.")
        >>> program.probabilities(program.initial_state()).tolist()
        [0.5, 0.5]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"instruction": ExtraColumn("trajectory")}

    begin: str = option(
        "Think step by step.|Search before you answer.|Plan, then act.|Check every answer before you give it.",
        filled=True,
    )
    temperature: float = option(0.1, above=0)
    rate: float = option(0.1, above=0, at_most=1)
    every: int = option(20, at_least=1)
    least: int = option(32, at_least=1)
    shown: int = option(4, at_least=1)
    candidates: int = option(2, at_least=1)
    tries: int = option(4, at_least=1)
    template: str = option("{text}\n\n{prompt}", filled=True)
    question: str = option(
        "An instruction:\n{instruction}\n\nIt failed here:\n{failures}\n\nWrite a better instruction.", filled=True
    )

    def check_options(self) -> None:
        """A population has at least two."""
        self.require(self.begin.count("|") > 0, "begin", "give at least two instructions, joined by |")

    def initial_state(self) -> State:
        """The first instructions, all alike."""
        texts = self.begin.split("|")
        return {"texts": texts, "weights": [0.0] * len(texts), "rollouts": [0] * len(texts)}

    def probabilities(self, state: Mapping[str, Any]) -> np.ndarray:
        """How probable each instruction is; 0 of an empty place."""
        alive = np.array([bool(text) for text in state["texts"]])
        scaled = np.where(alive, np.array(state["weights"]) / self.temperature, -np.inf)
        weights = np.exp(scaled - scaled.max())
        return np.asarray(weights / weights.sum())

    def worse(self, state: Mapping[str, Any]) -> list[int]:
        """The places of those that go at a halving: the smallest weights, of equal ones the later."""
        alive = [place for place, text in enumerate(state["texts"]) if text]
        known = [place for place in alive if state["rollouts"][place] >= self.least]
        count = max(min(len(known) // 2, len(alive) - 2), 0)
        return sorted(known, key=lambda place: (state["weights"][place], -place))[:count]

    def halves(self, iteration: int) -> bool:
        """Return whether an iteration ends with a halving."""
        return (iteration + 1) % self.every == 0

    def next(self, state: State, closed: IterationRecord) -> State:
        """Weights follow rewards; then the worse ones go, and candidates come."""
        parent = int(np.argmax(self.probabilities(state)))
        rows = Rows(closed.batch, "draw")
        used, rewards = rows.values("instruction"), rows.values("reward")
        texts, weights, rollouts = (list(state[name]) for name in ("texts", "weights", "rollouts"))
        for place in range(len(texts)):
            own = rewards[(used == place) & np.isfinite(rewards)]
            if len(own):
                weights[place] = (1.0 - self.rate) * weights[place] + self.rate * float(own.mean())
                rollouts[place] += len(own)
        state = {"texts": texts, "weights": weights, "rollouts": rollouts}
        if self.halves(closed.iteration):
            for place in self.worse(state):
                texts[place] = ""
            empty = (place for place, text in enumerate(list(texts)) if not text)
            for place, text in zip(empty, read_notes(closed.finished, "instruction"), strict=False):
                texts[place], weights[place], rollouts[place] = text, weights[parent], 0
        return state

    async def group(self, group: Group) -> None:
        """Rollouts under one instruction."""
        state = self.recall(group)
        place = int(np.searchsorted(np.cumsum(self.probabilities(state)), group.uniform("instruction"), side="right"))
        place = min(place, len(state["texts"]) - 1)
        text = state["texts"][place]
        await group.run(
            group.start_many(
                group.size, lambda asked: insert_text(asked, self.template, text), facts={"instruction": float(place)}
            )
        )

    async def cohort(self, groups: Cohort) -> None:
        """All groups; before a halving, candidates."""
        await groups.run()
        if not self.halves(groups[0].iteration):
            return
        state = self.recall(groups[0])
        best = int(np.argmax(self.probabilities(state)))
        failures = [
            branch.text
            for group in groups
            for branch in group.branches
            if not branch.success and branch.record.facts.get("instruction") == best
        ][: self.shown]
        count = max(len(self.worse(state)), state["texts"].count(""))
        if failures and count:
            await groups.run_each(lambda group: self.propose(group, state["texts"][best], failures, count), groups[:1])

    async def propose(self, group: Group, instruction: str, failures: list[str], count: int) -> None:
        """Write candidates and try them; note the best."""
        question = self.question.replace("{instruction}", instruction).replace("{failures}", "\n\n".join(failures))
        tried = []
        for _ in range(count * self.candidates):
            text = (await ask_agent(group, question, agent="proposer", about=group.branches[0])).strip()
            if text:
                tried.append((await self.tried(group, text), text))
        for _, text in sorted(tried, key=lambda each: -each[0])[:count]:
            self.note(group, "instruction", text, group.branches[0])

    async def tried(self, group: Group, text: str) -> float:
        """Return the mean reward of a few rollouts under a candidate."""
        branches = group.start_many(self.tries, lambda asked: insert_text(asked, self.template, text), role="helper")
        await group.run(branches)
        rewards = [branch.reward for branch in branches if np.isfinite(branch.reward)]
        return float(np.mean(rewards)) if rewards else -np.inf


INSPO = Recipe(
    name="inspo",
    source="arXiv:2512.01945",
    rollout=Instructed(),
    advantage=GroupRelative(),
    loss=Policy(aggregate="sequence_mean"),
)
