"""INSPO: improve a population of instructions together with the policy, by trials and by reflection.

Each group uses one instruction, drawn with p_j = softmax(w_j / 0.1) over the active instructions. After an iteration,
w_j <- 0.9 w_j + 0.1 mean reward of its groups. Every 20 iterations the worse half of the instructions with at least 32
rollouts is removed, but at least two instructions stay (as in `select.PromptBandit`). Before that an agent (`proposer`)
reads failures under the best instruction, and writes two candidates for each instruction that may be removed. The
policy tries each candidate in four rollouts of the first group's task, which are not trained. The candidates with the
largest mean rewards take the free places, with the weight of the best instruction. Advantages are those of GRPO within
the group; instructions are context and never trained. The numbers are chosen here, because those of the paper are not
public. Source: INSPO (agentic policy optimisation by instruction-policy co-evolution), arXiv:2512.01945.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, choice of an instruction: `InstructionSearch.probabilities`.
    - N2, advantage: `GroupRelative`; a group has one instruction and one task.
    - N3, objective: `Policy`, mean over the policy's tokens of a rollout, then over rollouts; clip range 0.2.
    - N4, weight of an instruction: `InstructionSearch.next`; the mean is over all groups of an iteration with this
      instruction.
    - N5, pruning: `InstructionSearch.worse`.
    - N6, new instructions: `InstructionSearch.propose`.

Differs:
    - Optimizer steps a batch and clip range: not found; 1 and 0.2 here, so the range never acts.
    - Replay buffer: failures come from the current iteration, under the best instruction, not from earlier iterations.
    - Pruning: an instruction with fewer than 32 rollouts stays, and so do the last two.
    - Tasks of the check: one, that of the first group; the paper's definition of a cheap proxy was not read.
    - Weight of a new instruction: the parent's weight or the mean in the notes; the parent's weight here.

Needs: a model that follows an instruction in front of the task. The small model of `agentrl train` never saw one: all
its answers get equal rewards, and it learns nothing.
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
class InstructionSearch(TextMemory):
    """Roll out each group under one of several instructions, and replace instructions that bring low rewards.

    The draw column `instruction` is the number of the group's instruction.

    Args:
        begin: the first instructions, at least two.
        temperature: temperature of the softmax over weights.
        rate: how fast a weight follows the rewards.
        every: iterations between two halvings.
        least: rollouts of an instruction before it may be removed.
        shown: number of failures that the proposer reads.
        candidates: number of new instructions written for each place to fill.
        tries: rollouts of a candidate.
        template: prompt template: `{text}` is the instruction, `{prompt}` the task.
        question: prompt template of the proposer: `{instruction}`, and the `{failures}` under it.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.inspo import InstructionSearch
        >>> program = InstructionSearch(begin=("Think.", "Search first."))
        >>> program.probabilities(program.initial_state()).tolist()
        [0.5, 0.5]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"instruction": ExtraColumn("trajectory")}

    begin: tuple[str, ...] = (
        "Think step by step.",
        "Search before you answer.",
        "Plan, then act.",
        "Check every answer before you give it.",
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
        """Check that there are at least two instructions."""
        self.require(len(self.begin) > 1, "begin", "give at least two instructions")

    def initial_state(self) -> State:
        """Return the first instructions, with equal weights."""
        texts = list(self.begin)
        return {"texts": texts, "weights": [0.0] * len(texts), "rollouts": [0] * len(texts)}

    def probabilities(self, state: Mapping[str, Any]) -> np.ndarray:
        """Return the probability of each place in the list of instructions; 0 for a place without an instruction."""
        alive = np.array([bool(text) for text in state["texts"]])
        scaled = np.where(alive, np.array(state["weights"]) / self.temperature, -np.inf)
        weights = np.exp(scaled - scaled.max())
        return np.asarray(weights / weights.sum())

    def worse(self, state: Mapping[str, Any]) -> list[int]:
        """Return the places that a halving frees: up to half of those with `least` rollouts, by smallest weights."""
        alive = [place for place, text in enumerate(state["texts"]) if text]
        known = [place for place in alive if state["rollouts"][place] >= self.least]
        count = max(min(len(known) // 2, len(alive) - 2), 0)
        return sorted(known, key=lambda place: (state["weights"][place], -place))[:count]

    def halves(self, iteration: int) -> bool:
        """Return whether an iteration ends with a halving, which removes instructions with small weights."""
        return (iteration + 1) % self.every == 0

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the next state: weights follow rewards; at a halving, candidates replace the worse instructions."""
        parent = int(np.argmax(self.probabilities(state)))
        rows = Rows(closed.batch, "draw")
        instruction, rewards = rows.values("instruction"), rows.values("reward")
        texts, weights, rollouts = (list(state[name]) for name in ("texts", "weights", "rollouts"))
        for place in range(len(texts)):
            instruction_rewards = rewards[(instruction == place) & np.isfinite(rewards)]
            if len(instruction_rewards):
                weights[place] = (1.0 - self.rate) * weights[place] + self.rate * float(instruction_rewards.mean())
                rollouts[place] += len(instruction_rewards)
        state = {"texts": texts, "weights": weights, "rollouts": rollouts}
        if self.halves(closed.iteration):
            for place in self.worse(state):
                texts[place] = ""
            free_places = (place for place, text in enumerate(list(texts)) if not text)
            for place, text in zip(free_places, read_notes(closed.finished, "instruction"), strict=False):
                texts[place], weights[place], rollouts[place] = text, weights[parent], 0
        return state

    async def group(self, group: Group) -> None:
        """Run the rollouts of a group under one sampled instruction."""
        state = self.recall(group)
        place = int(np.searchsorted(np.cumsum(self.probabilities(state)), group.uniform("instruction"), side="right"))
        place = min(place, len(state["texts"]) - 1)
        text = state["texts"][place]
        await group.run(
            group.start_many(
                group.size,
                lambda messages: insert_text(messages, self.template, text),
                facts={"instruction": float(place)},
            )
        )

    async def cohort(self, groups: Cohort) -> None:
        """Run all groups; before a halving, also write and try candidates."""
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
        """Query the proposer for candidates, try them, and note the best ones."""
        question = self.question.replace("{instruction}", instruction).replace("{failures}", "\n\n".join(failures))
        scored = []
        for _ in range(count * self.candidates):
            text = (await ask_agent(group, question, agent="proposer", about=group.branches[0])).strip()
            if text:
                scored.append((await self.tried(group, text), text))
        for _, text in sorted(scored, key=lambda each: -each[0])[:count]:
            self.note(group, "instruction", text, group.branches[0])

    async def tried(self, group: Group, text: str) -> float:
        """Return the mean reward of a few rollouts under a candidate, -inf if no reward is known."""
        branches = group.start_many(
            self.tries, lambda messages: insert_text(messages, self.template, text), role="helper"
        )
        await group.run(branches)
        rewards = [branch.reward for branch in branches if np.isfinite(branch.reward)]
        return float(np.mean(rewards)) if rewards else -np.inf


INSPO = Recipe(
    name="inspo",
    source="arXiv:2512.01945",
    rollout=InstructionSearch(),
    advantage=GroupRelative(),
    loss=Policy(aggregate="sequence_mean"),
)
