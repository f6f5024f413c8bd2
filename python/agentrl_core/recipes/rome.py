"""ROME (IPA, on ROLL): credit, ratios and masks for a whole message of the agent, its chunk (arXiv:2512.24873).

    G_c = r_c + G_{c+1},   A = G_c for all tokens of chunk c,   r_c the reward at its last token
    s_c = exp(mean of log p - log p_old over the chunk)
    L = - mean over tokens of k_c w_c A log p,   w_c = 1 if A > 0, else min(s_c, 1), without gradient
    k_c = 1[exp(mean of log p_old - log p_engine over the chunk) <= 2], which counts in the mean either way

A chunk is the agent's text between two observations: a step. More filters, at the levels of tokens and sequences,
follow one another, and ROLL's weight is an option of its own after them:
`weight.ImportanceWeight(level="step_geometric")`. Its other losses are PPO's (`Policy(ratio=Ratio("step"),
clip=Clip(dual=1.4))`) and `Reinforce` with other weights (TIS, CISPO).

Rollouts begin after chunks of an expert (`FromChunks`), so that some come to a success; if none does, the expert's
own trajectory is imitated, whose chunks weigh their returns.

Equations:
    Read: the paper's section 3.2.4, the code, and public notes on the paper.

    - C1, chunk: a step.
    - 7, chunk return: `Discounted`; rewards inside a chunk are not read.
    - 8, chunk ratio: `Ratio("step")`.
    - 8b, chunk mask: `ImportanceWeight(level="step_geometric", kind="filter")`.
    - 9, chunk-level gradient: `Reinforce(negative="clamped")` with `Clip(1.0, 0.0)`.
    - 10, hybrid of imitation and RL: not computed: its weights are not stated. Here an expert's chunk has its return as
      weight, and counts like the policy's.
    - N1, chunk-level resampling: `FromChunks`, at several anchors at once, or backwards (`kind="rollback"`).
    - 1, masked imitation: left out: it is a supervised stage before.
    - C2, normalisation of rewards: left out: an option of the code; returns are not normalised here.

Differs:
    - Discount: not stated; 1 here. `Discounted(gamma=0.9)` would discount by chunks.
    - Clip range: [0, 1], which is `Clip(1.0, 0.0)`.
    - Positive and negative samples: split by the score in the code, by the sign of the return here; the same if
      only the last chunk is paid.
    - Bound of the chunk mask: not stated; 2 here.
    - Imitation: the paper imitates an expert's chunks up to a crucial one from which no rollout succeeds; here the
      whole trajectory, if no member of the group succeeds.
    - Expert: the paper renews it under the current policy from time to time; here a task's solution stays.
    - Trajectory filter: the paper discards trajectories with failures of the environment or repeated illegal calls and
      samples them again. Here episodes whose environment raises are repeated; nothing else is discarded.
    - Rollback: the paper begins at all chunks in turn; here one less is given once half of a group succeeds.

Needs: rewards of steps; `recomputed_logprob`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted
from agentrl_core.component import IterationRecord, State, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Clip, Policy, Ratio, Reinforce
from agentrl_core.rollout import Branch, Group, Prefix, TextMemory, read_notes
from agentrl_core.weight import ImportanceWeight


@dataclass(frozen=True)
class FromChunks(TextMemory):
    """Rollouts that begin after the first chunks of a trajectory that solved the task.

    It is `Task.solution`, or else the newest of the run itself; a task that nobody solved yet begins at its prompt. Of
    its K chunks the first k < K are given, not trained, and the environment answers them:

    - `parallel`: k = floor(a K / anchors) for anchor a = 0, 1, …; the members take the anchors in turn;
    - `rollback`: k = K - 1 at first, the same for the whole group; one less whenever at least `learned` of a group
      succeeds from there. So the task is learned from its end, and a drop of success marks a decisive chunk.

    If no member succeeds, the expert's trajectory joins and is trained.

    The draw column `given` is k, and `expert` is 1 for what is the expert's.

    Args:
        kind: where the members begin.
        anchors: of `parallel`.
        learned: of `rollback`; the paper gives no number.
        imitate: whether the expert joins a group that fails.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.rome import FromChunks
        >>> [FromChunks(anchors=4).anchor(member, chunks=6) for member in range(5)]
        [0, 1, 3, 4, 0]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {
        "given": ExtraColumn("trajectory"),
        "expert": ExtraColumn("trajectory"),
    }

    kind: Literal["parallel", "rollback"] = "parallel"
    anchors: int = option(4, at_least=1)
    learned: float = option(0.5, above=0, at_most=1)
    imitate: bool = True

    def initial_state(self) -> State:
        """No task was rolled back."""
        return {"given": {}}

    def next(self, state: State, closed: IterationRecord) -> State:
        """One chunk less of those tasks that are learned from where they began."""
        given = dict(state["given"])
        for task_id, count, share in read_notes(closed.finished, "began"):
            given[task_id] = max(count - (share >= self.learned), 0)
        return {"given": given}

    def anchor(self, member: int, chunks: int) -> int:
        """How many chunks of an expert's are given to a member, all of which begin apart."""
        return member % self.anchors * chunks // self.anchors

    async def group(self, group: Group) -> None:
        """All members, each after its chunks; then the expert, if none succeeds."""
        expert = self.expert(group)
        chunks = len(expert.actions)
        begun = self.recall(group)["given"].get(group.task.task_id, chunks - 1)
        rolled = max(min(begun, chunks - 1), 0)
        branches = []
        for member in range(group.size):
            count = self.anchor(member, chunks) if self.kind == "parallel" else rolled
            facts = {"given": float(count), "expert": 0.0}
            branches.append(group.start(prefix=self.begins(group, expert, count), facts=facts))
        await group.run(branches)
        share = sum(bool(branch.success) for branch in branches) / len(branches)
        if self.kind == "rollback" and chunks:
            self.note(group, "began", [group.task.task_id, rolled, share], branches[0])
        if self.imitate and chunks and not share:
            facts = {"given": 0.0, "expert": 1.0}
            await group.run([group.start(origin="expert", facts=facts)], lambda branch: self.imitated(branch, expert))

    def expert(self, group: Group) -> Prefix:
        """All chunks of the expert; none, if nobody solved the task."""
        if group.task.solution:
            return Prefix(group.task.solution, title="reference solution")
        solved = group.library.solved(group.task.task_id)
        return group.library.prefix(solved[-1]) if solved else Prefix()

    def begins(self, group: Group, expert: Prefix, count: int) -> Prefix | None:
        """The first chunks of the expert."""
        if not count:
            return None
        if group.task.solution:
            return Prefix(expert.actions[:count], title=expert.title)
        return group.library.prefix(group.library.solved(group.task.task_id)[-1], turns=count)

    async def imitated(self, branch: Branch, expert: Prefix) -> None:
        """The expert's chunks, as actions that are trained."""
        await branch.begin()
        for action in expert.actions:
            if branch.over:
                return
            branch.write(action)
            await branch.submit()

    def final_group_size(self, group_size: int) -> int:
        """The members, and the expert."""
        return group_size + self.imitate


ROME = Recipe(
    name="rome",
    source="arXiv:2512.24873",
    rollout=FromChunks(),
    advantage=Discounted(),
    weight=ImportanceWeight(level="step_geometric", kind="filter"),
    loss=Policy(ratio=Ratio("step"), clip=Clip(1.0, 0.0), surrogate=Reinforce(negative="clamped")),
    old_logprob="recomputed",
)
