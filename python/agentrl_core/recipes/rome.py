"""ROME (IPA, on ROLL): compute credit, ratios and masks for each message of the agent as a whole (arXiv:2512.24873).

    G_c = r_c + G_{c+1},   A = G_c for all tokens of chunk c,   r_c the reward at its last token
    s_c = exp(mean of log p - log p_old over the chunk)
    L = - mean over tokens of k_c w_c A log p,   w_c = 1 if A > 0, else min(s_c, 1), without gradient
    k_c = 1[exp(mean of log p_old - log p_engine over the chunk) <= 2]; tokens with k_c = 0 still count in the mean

A chunk is the agent's text between two observations: a step. More filters, for tokens and for sequences, can be
chained. ROLL's weight is a separate option after these filters: `weight.ImportanceWeight(level="step_geometric")`.
ROLL's other losses are PPO (`Policy(ratio=Ratio("step"), clip=Clip(dual=1.4))`) and `Reinforce` with other weights
(TIS, CISPO).

Rollouts begin after the first chunks of an expert (`FromChunks`), so that some of them succeed. If none does, the
expert's own trajectory is imitated, and each of its chunks is weighted by its return.

Equations:
    Read: the paper's section 3.2.4, the code, and public notes on the paper.

    - C1, chunk: a step.
    - 7, chunk return: `Discounted`; rewards inside a chunk are not read.
    - 8, chunk ratio: `Ratio("step")`.
    - 8b, chunk mask: `ImportanceWeight(level="step_geometric", kind="filter")`.
    - 9, chunk-level gradient: `Reinforce(negative="clamped")` with `Clip(1.0, 0.0)`.
    - 10, hybrid of imitation and RL: not computed: its weights are not stated. Here an expert's chunk is weighted by
      its return, and counts like a chunk of the policy.
    - N1, chunk-level resampling: `FromChunks`, from several anchors at once, or backwards (`kind="rollback"`).
    - 1, masked imitation: left out: it is an earlier, supervised stage.
    - C2, normalisation of rewards: left out: an option of the code; returns are not normalised here.

Differs:
    - Discount: not stated; 1 here. `Discounted(gamma=0.9)` would discount by chunks.
    - Clip range: [0, 1], which is `Clip(1.0, 0.0)`.
    - Positive and negative samples: split by the score in the code, by the sign of the return here; the results are
      equal if only the last chunk has a reward.
    - Bound of the chunk mask: not stated; 2 here.
    - Imitation: the paper imitates an expert's chunks up to a crucial one from which no rollout succeeds; here the
      whole trajectory is imitated, if no member of the group succeeds.
    - Expert: the paper renews it with the current policy from time to time; here a task's solution does not change.
    - Trajectory filter: the paper discards trajectories with failures of the environment or repeated illegal calls
      and samples them again. Here episodes whose environment raises an error are repeated; nothing else is discarded.
    - Rollback: the paper begins at all chunks in turn; here one chunk less is given once half of a group succeeds.

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
    """Start rollouts after the first chunks (actions) of an expert trajectory that solves the task.

    The expert trajectory is `Task.solution`, or else the newest trajectory of the run that solved the task. Without
    either, rollouts start at the prompt. Of the K chunks of the expert, the first k < K are submitted to the
    environment and not trained:

    - `parallel`: k = floor(a K / anchors) for anchor a = 0, 1, …; the members take the anchors in turn;
    - `rollback`: k = K - 1 at first, the same for the whole group; k falls by one whenever a share of at least
      `learned` of a group succeeds. So the task is learned from its end, and a drop in success marks a decisive
      chunk.

    If no member succeeds, the expert's trajectory joins the group and is trained.

    The draw column `given` is k, and `expert` is 1 for the expert's trajectory.

    Args:
        kind: rule for k, see above.
        anchors: for `parallel`: number of start positions.
        learned: for `rollback`: share of successes that lowers k; the paper gives no number.
        imitate: whether the expert's trajectory joins a group without a success.

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
        """Return a state without a number of chunks for any task."""
        return {"given": {}}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the number of chunks to give for each task, one less if its group succeeded often enough."""
        chunk_counts = dict(state["given"])
        for task_id, count, share in read_notes(closed.finished, "began"):
            chunk_counts[task_id] = max(count - (share >= self.learned), 0)
        return {"given": chunk_counts}

    def anchor(self, member: int, chunks: int) -> int:
        """Return the number of expert chunks given to a member; members take the `anchors` start positions in turn."""
        return member % self.anchors * chunks // self.anchors

    async def group(self, group: Group) -> None:
        """Run all members, each after its given chunks; then the expert's trajectory, if no member succeeds."""
        expert = self.expert(group)
        chunks = len(expert.actions)
        stored_count = self.recall(group)["given"].get(group.task.task_id, chunks - 1)
        rollback_count = max(min(stored_count, chunks - 1), 0)
        branches = []
        for member in range(group.size):
            count = self.anchor(member, chunks) if self.kind == "parallel" else rollback_count
            facts = {"given": float(count), "expert": 0.0}
            branches.append(group.start(prefix=self.begins(group, expert, count), facts=facts))
        await group.run(branches)
        share = sum(bool(branch.success) for branch in branches) / len(branches)
        if self.kind == "rollback" and chunks:
            self.note(group, "began", [group.task.task_id, rollback_count, share], branches[0])
        if self.imitate and chunks and not share:
            facts = {"given": 0.0, "expert": 1.0}
            await group.run([group.start(origin="expert", facts=facts)], lambda branch: self.imitated(branch, expert))

    def expert(self, group: Group) -> Prefix:
        """Return all chunks of the expert, or an empty prefix if there is no expert trajectory."""
        if group.task.solution:
            return Prefix(group.task.solution, title="reference solution")
        solved = group.library.solved(group.task.task_id)
        return group.library.prefix(solved[-1]) if solved else Prefix()

    def begins(self, group: Group, expert: Prefix, count: int) -> Prefix | None:
        """Return the first `count` chunks of the expert as a prefix, or None for 0 chunks."""
        if not count:
            return None
        if group.task.solution:
            return Prefix(expert.actions[:count], title=expert.title)
        return group.library.prefix(group.library.solved(group.task.task_id)[-1], turns=count)

    async def imitated(self, branch: Branch, expert: Prefix) -> None:
        """Write the expert's chunks as trained actions, and submit each to the environment."""
        await branch.begin()
        for action in expert.actions:
            if branch.over:
                return
            branch.write(action)
            await branch.submit()

    def final_group_size(self, group_size: int) -> int:
        """Return the number of members, plus one for the expert if `imitate` is set."""
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
