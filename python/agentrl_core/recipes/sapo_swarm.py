"""SAPO of the swarm: share rollouts as texts between nodes, and train on local and external ones (arXiv:2509.08721).

Each node trains its own model, of any kind, and shares no weights. Half of the groups of a batch come from other nodes.
Their tasks and texts are read from the folder that the nodes share, and are replayed here: the local tokenizer encodes
the texts, the local environment computes the rewards, and the local policy computes the old log-probs, as if it had
sampled the texts. External groups whose rewards are all equal are skipped; the needed number is sampled at random from
the remaining ones. If there are too few, the node rolls out its own tasks instead. The loss is GRPO's without KL, clip
0.2 and 0.28.

Equations:
    Read: the abstract, the code of gensyn-ai/genrl, and a public summary of sections 3.2 to 5.

    - N1, training set: `SharedExperience(external=0.5)`; external groups are sampled uniformly among those whose
      rewards differ.
    - C1, advantage: `GroupRelative(eps=1e-8)`; an external group is a separate group, with rewards of the local
      environment.
    - C2, ratio: `old_logprob="recomputed"`: by the local policy for all text; the author of a text sends no log-probs.
    - C3, loss: `Policy`, one token mean over local and external tokens.
    - C4, choice of external trees in the code: left out: the paper's choice is N1; the code takes the trees with the
      highest total score, whether or not their rewards differ.

Differs:
    - Own rollouts: a summary of the paper generates and shares all of a node's tasks and trains on half of them; here
      all rollouts that a node generates are trained and shared.
    - External groups that are missing: the code trains on fewer; here the node rolls out its own tasks in their place.

Source: arXiv:2509.08721; code gensyn-ai/rl-swarm. Half is the paper's best share (4 of 8), three quarters are worse.
It is not the SAPO of soft gates (recipe `sapo`). Set the folder and a node's name by
`rollout=SharedExperience(folder=..., node=...)`; without a folder everything is local. Needs: tasks whose payload is
plain JSON, the same environment at every node.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Cohort, Group, Rollout


@dataclass(frozen=True)
class SharedExperience(Rollout):
    """Roll out this node's own groups, and replay groups that other nodes rolled out.

    The draw column `shared` is 1 for groups of other nodes. A node writes its own rollouts to
    `<folder>/<node>.jsonl`, one group a line, and overwrites its earlier ones.

    Args:
        folder: folder to which the nodes write; empty: nothing is shared.
        node: name of this node.
        external: share of the groups that come from other nodes, 0 to 1.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: a line of the folder is not a group, or a task cannot be written.

    Example:
        >>> from agentrl_core.recipes.sapo_swarm import SharedExperience
        >>> SharedExperience(folder="swarm", node="a").external
        0.5
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"shared": ExtraColumn("trajectory")}

    folder: str = option("")
    node: str = option("node", filled=True)
    external: float = option(0.5, at_least=0, at_most=1)

    async def group(self, group: Group) -> None:
        """Roll out one of this node's own groups."""
        await group.run(group.start_many(group.size, facts={"shared": 0}))

    async def cohort(self, groups: Cohort) -> None:
        """Replay external groups, roll out this node's own groups for the rest, and write these for other nodes."""
        num_external = int(self.external * len(groups)) if self.folder else 0
        replayed = 0
        if num_external:

            async def offered() -> list[dict[str, Any]]:
                return self.offered()

            lines = await groups.side_effect("offered", offered)
            order = sorted(range(len(lines)), key=lambda line: groups.uniform("shared", line))
            outcomes: list[bool] = []
            for line in order:
                if sum(outcomes) == num_external:
                    break

                async def replay(group: Group, line: int = line) -> None:
                    outcomes.append(await self.replay(group, lines[line]))

                await groups.run_each(replay, [groups[len(groups) - 1 - sum(outcomes)]])
            replayed = sum(outcomes)
        own_groups = groups[: len(groups) - replayed]
        await groups.run_each(self.group, own_groups)
        if self.folder:

            async def write() -> int:
                return self.write(own_groups)

            await groups.side_effect("written", write)

    async def replay(self, group: Group, line: Mapping[str, Any]) -> bool:
        """Replay a group of another node; return whether its rewards differ."""
        try:
            task, attempts = Task(**{**line["task"], "solution": ()}), line["attempts"]
            size = len(attempts)
        except (KeyError, TypeError) as error:
            raise InvalidInputError(
                f"SharedExperience: a file in folder {self.folder} has the line {json.dumps(line):.80}, which is not a "
                f"group ({error!r}); remove this line"
            ) from None
        derived = await group.spawn(task, size=size, program=_ReplayedExperience(json.dumps(attempts)))
        return any(branch.status != "pruned" for branch in derived.branches)

    def offered(self) -> list[dict[str, Any]]:
        """Return the groups that the other nodes wrote, in the order of the nodes' names."""
        groups = []
        for path in sorted(path for path in Path(self.folder).glob("*.jsonl") if path.stem != self.node):
            try:
                texts = path.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError) as error:
                raise InvalidInputError(
                    f"SharedExperience: {path} cannot be read ({error}); check the file and its permissions"
                ) from None
            for number, text in enumerate(texts, start=1):
                try:
                    groups.append(json.loads(text))
                except ValueError as error:
                    raise InvalidInputError(
                        f"SharedExperience: line {number} of {path} is not JSON ({error}); remove this line"
                    ) from None
        return groups

    def write(self, groups: list[Group]) -> int:
        """Replace the content of this node's file by these groups, and return their number."""
        lines = []
        for group in groups:
            task = {name: getattr(group.task, name) for name in ("task_id", "question", "domain", "payload")}
            attempts = [[turn.text for turn in branch.turns] for branch in group.branches]
            try:
                lines.append(json.dumps({"task": task, "attempts": attempts}))
            except (TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"SharedExperience: task {group.task.task_id!r} cannot be shared: {error}; give a payload of plain "
                    "JSON values"
                ) from None
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Rename the file after it is complete, so that no other node reads a part of it.
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(("\n".join(lines) + "\n" * bool(lines)).encode())
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(folder / f"{self.node}.jsonl")
        return len(lines)


@dataclass(frozen=True)
class _ReplayedExperience(Rollout):
    """Replay a group whose actions are given."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = SharedExperience.facts

    attempts: str = "[]"

    async def group(self, group: Group) -> None:
        """Replay each attempt until the environment ends it; drop the group if all rewards are equal."""
        for actions in json.loads(self.attempts):
            branch = group.start(origin="imported", facts={"shared": 1})
            for action in actions:
                if not branch.over:
                    await branch.turn(action)
            branch.stop("no recorded action is left", status="truncated")
        scores = await group.score()
        if len(np.unique(scores[np.isfinite(scores)])) < 2:
            group.drop(group.branches, "all rewards are equal")


SAPO_SWARM = Recipe(
    name="sapo_swarm",
    source="arXiv:2509.08721",
    rollout=SharedExperience(),
    advantage=GroupRelative(eps=1e-8),
    loss=Policy(clip=Clip(0.2, 0.28)),
    old_logprob="recomputed",
)
