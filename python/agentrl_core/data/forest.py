"""Forest: the growing data of running rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._core import Tree
from agentrl_core._util.json_text import to_json
from agentrl_core.data import forest_edits as branches
from agentrl_core.data import forest_ingest as ingest
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest_edits import Floats, Tokens
from agentrl_core.operators.columns import as_bytes

FactValue = float | str | bytes | None
"""A fact: a number, or a key (a text, or bytes, stored as hexadecimal digits); None: missing."""
Kind = Literal["prompt", "action", "observation", "injected"]
Operation = Literal["start", "fork", "continue", "inject", "splice", "rollback", "replace", "prune", "stop", "resume"]


@dataclass(frozen=True)
class RunningTrajectories:
    """Running trajectories, one row each, sorted by group and then by start.

    Attributes:
        trajectory: `int64[rows]`, handle.
        group: `uint32[rows]`, number of the group.
        node: `int64[rows]`, handle of the path's last node; -1 before the first.
        end: `uint32[rows]`, number of that node's tokens on the path.
        length: `uint32[rows]`, tokens of the path.
        steps: `uint32[rows]`, closed steps.
        context: `uint32[rows]`, number of context rewrites.
    """

    trajectory: NDArray[np.int64]
    group: NDArray[np.uint32]
    node: NDArray[np.int64]
    end: NDArray[np.uint32]
    length: NDArray[np.uint32]
    steps: NDArray[np.uint32]
    context: NDArray[np.uint32]


class Forest:
    """Groups of trajectories that grow turn by turn, fork at any token, and freeze into a `Batch`.

    A node is a run of tokens from one source; it is never cut or changed. A fork shares all tokens before it. The
    frozen batch depends on the place of each operation (group, member, branch position, ordinal, content), never on the
    order of turns between trajectories. Methods may be called from several threads and from asyncio tasks.

    Trajectories and nodes have handles, integers that are unique in the process: a forest refuses the handles of
    another.

    Args:
        iteration: the iteration to collect.
        seed: the run's seed, from which segment seeds are derived.
        reward_components: names of the values in `rewards`, stored with the tables; one list value for each.
        entropies: how entropies are estimated (`exact`, `top_10`, ...), stored with the tables.
        facts: facts of the environment besides its reward: names for level `step` and level `trajectory`, each a
            `number` (stored as float32) or a `key` (an identifying text). They become column `facts` of `steps` and
            `trajectories`, a struct, and `Batch.column` and `Batch.keys` find them by name.
        max_blob_bytes: the largest blob that `add_blob` accepts; None: 64 MiB.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest(iteration=0, seed=7)
        >>> forest.add_group(0, "what is 6*7?")
        >>> trunk = forest.start(0, member=0)
        >>> _ = forest.append(trunk, [1, 2, 3], kind="prompt")
        >>> action = forest.append(trunk, [4, 5, 6], kind="action", logprobs=[-0.5, -1.0, -0.1])
        >>> branch = forest.fork(trunk, node=action, end=1)     # shares the prompt and the action's first token
        >>> _ = forest.append(branch, [7], kind="action", logprobs=[-2.0])
        >>> for trajectory in (trunk, branch):
        ...     forest.finish(trajectory, reward=1.0, success=True)
        >>> forest.freeze()
        Batch(2 draws in 1 groups, 2 trajectories, 3 nodes)

        Facts of an environment:

        >>> forest = arl.Forest(facts={"step": {"flawed": "number"}, "trajectory": {"answer": "key"}})
        >>> forest.add_group(0, "what is 6*7?")
        >>> for member, answer in enumerate(["42", "36", "42"]):
        ...     trajectory = forest.start(0, member)
        ...     _ = forest.append(trajectory, [1, 2, 3], kind="prompt")
        ...     _ = forest.append(trajectory, [4 + member], kind="action", logprobs=[-0.5])
        ...     forest.step(trajectory, facts={"flawed": answer != "42"})
        ...     forest.finish(trajectory, reward=1.0, facts={"answer": answer})
        >>> batch = forest.freeze()
        >>> batch.column("flawed", "step").tolist(), batch.keys("answer", "draw").tolist()
        ([0.0, 1.0, 0.0], [0, 1, 0])

    Raises:
        InvalidInputError: `facts` has another level or kind, a name at both levels, or a reserved name.
    """

    __slots__ = ("__weakref__", "_core")

    # Methods that derive trajectories, and those for many rows, are in separate files.
    adopt = branches.adopt
    fork = branches.fork
    splice = branches.splice
    with_prompt = branches.with_prompt
    rollback = branches.rollback
    replace = branches.replace
    rewrite = branches.rewrite
    prune = branches.prune
    append_many = ingest.append_many
    append_chats = ingest.append_chats
    ingest = ingest.ingest

    def __init__(
        self,
        *,
        iteration: int = 0,
        seed: int = 0,
        reward_components: Sequence[str] | None = None,
        entropies: str = "exact",
        facts: Mapping[str, Mapping[str, Literal["number", "key"]]] | None = None,
        max_blob_bytes: int | None = None,
    ) -> None:
        self._core = _core.Forest(
            iteration=iteration,
            seed=seed,
            reward_components=None if reward_components is None else list(reward_components),
            entropies=entropies,
            facts=None if facts is None else {level: dict(names) for level, names in facts.items()},
            max_blob_bytes=max_blob_bytes,
        )

    @property
    def iteration(self) -> int:
        """The collected iteration."""
        return self._core.iteration

    def __len__(self) -> int:
        """Number of live groups."""
        return len(self._core)

    def __repr__(self) -> str:
        """Show live groups, and those that cannot freeze yet because of running trajectories."""
        numbers, counts = np.unique(self.running().group, return_counts=True)
        said = [f"{count} in group {number}" for number, count in zip(numbers[:5], counts[:5], strict=True)]
        more = ["..."] if len(numbers) > len(said) else []
        running = f"; {counts.sum()} trajectories run: {', '.join(said + more)}" if len(numbers) else ""
        return f"Forest(iteration {self.iteration}: {len(self)} groups{running})"

    def add_group(self, group: int, task_id: str, *, key: Sequence[int] | None = None) -> None:
        """Open a group of rollouts of a task.

        Args:
            group: its number for other calls, unique in the forest.
            task_id: the task.
            key: at least one integer, for the seeds of its segments and the order of frozen groups (word by word).
                None: the iteration and `group`. A group that continues in a later iteration keeps its key and thus its
                seeds. A group derived from another extends that key, so that its seeds do not depend on earlier derived
                groups.

        Raises:
            InvalidInputError: another live group has the number or the key.

        Example:
            >>> import agentrl_core as arl
            >>> now, later = arl.Forest(iteration=4), arl.Forest(iteration=5)
            >>> now.add_group(2, "task")
            >>> later.add_group(0, "task", key=(4, 2))
            >>> now.segment_seed(now.start(2, 0)) == later.segment_seed(later.start(0, 0))
            True
        """
        self._core.add_group(group, task_id, key=None if key is None else list(key))

    def add_blob(self, blob: bytes) -> bytes:
        """Store a blob, such as an image, and return its SHA-256 (32 bytes), by which nodes refer to it.

        Equal blobs are stored once. The batch of the nodes contains them.

        Raises:
            InvalidInputError: the blob is larger than `max_blob_bytes`.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> screenshot = forest.add_blob(b"a picture")
            >>> forest.add_group(0, "task")
            >>> node = forest.append(forest.start(0, 0), [7, 7], kind="prompt", blobs=[screenshot])
        """
        return self._core.add_blob(blob)

    def start(
        self,
        group: int,
        member: int,
        *,
        agent: int = 0,
        episode: int | None = None,
        parent: int | None = None,
        origin: Literal["generated", "expert", "imagined", "imported"] = "generated",
        role: Literal["member", "baseline", "helper"] = "member",
    ) -> int:
        """Start a trajectory of a group with an empty path, and return its handle.

        Args:
            group: number of the group.
            member: number of the trajectory among those of its agent in the group, chosen by the caller.
            agent: number of its agent, if several share an episode.
            episode: a trajectory of the same episode, in any group; None: a new episode.
            parent: a related trajectory without shared tokens, in any group (observer and pioneer, solver and proposer,
                recovery and failure). Linked groups freeze together.
            origin: origin of the trajectory.
            role: its purpose: a `member` of its group is scored, votes and is trained; a `baseline` is scored and votes
                but is never trained (the greedy rollout of ReMax); a `helper` is stored but never drawn. Forks have the
                role of their parent.

        Raises:
            InvalidInputError: the member of that agent exists already.
            NotFoundError: the group or trajectory does not exist.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "debate")
            >>> pioneer = forest.start(0, member=0)
            >>> observer = forest.start(0, member=0, agent=1, episode=pioneer, parent=pioneer)
        """
        return self._core.start(group, member, agent=agent, episode=episode, parent=parent, origin=origin, role=role)

    def append(
        self,
        trajectory: int,
        tokens: Tokens,
        *,
        kind: Kind,
        logprobs: Floats | None = None,
        entropies: Floats | None = None,
        trainable: Sequence[int] | NDArray[np.bool_] | NDArray[np.uint8] | None = None,
        state: bytes | str | None = None,
        policy: int = 0,
        policy_version: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        finish_reason: Literal["stop", "length", "abort"] | None = None,
        origin: int | None = None,
        blobs: Sequence[bytes] | None = None,
        columns: Mapping[str, NDArray[Any] | tuple[int, NDArray[Any]]] | None = None,
    ) -> int:
        """Append a node to a trajectory's path, and return the node's handle.

        Args:
            trajectory: handle.
            tokens: token ids, int32, at least one.
            kind: `prompt`, `action` (sampled by the policy), `observation`, or `injected` (context that was not
                sampled).
            logprobs: behaviour log-prob of each token, in nats, of the actual sampling distribution; actions only. For
                tokens with `trainable` 0 it is never read and may be anything, including None and NaN.
            entropies: entropy of that distribution at each token, in nats.
            trainable: 0/1 for each token of an action; None: all of them.
            state: identity of the environment's state, hashed into the 128-bit key of the next step; None: the tokens
                of the prompt or observation.
            policy: number of the policy, if there are several.
            policy_version: version of the weights that sampled the tokens.
            seed: the segment's seed.
            temperature: softmax temperature of the sampling; None without sampling.
            top_p: nucleus mass, 1 keeps everything.
            top_k: number of tokens kept, 0 keeps everything.
            finish_reason: reason why sampling stopped.
            origin: the node of the same group that these tokens repeat or rewrite.
            blobs: blobs of the tokens, such as images, by the hash from `add_blob`.
            columns: rows of several values for each token, by the names of their columns: arrays `[tokens, width]` of
                uint8, uint16, int32 or float32, such as the experts that a router chose. All rows of a column have one
                dtype and width. A pair `(position, rows)` begins at another token of the path and may cover earlier
                nodes, so that what an engine reports of its context is recorded with the answer. A token keeps its
                first row; stored nodes never change. A token without a row is missing (`Batch.column`).

        Raises:
            InvalidInputError: an array has another length than `tokens`, the log-prob of a trained token is NaN or
                positive, an action is empty, the trajectory has ended; rows have another dtype or width, or cover
                tokens that the path does not have. Nothing is stored then.
            NotFoundError: the trajectory does not exist.

        Example:
            Rows of the whole path but the last token, which no model has read yet:

            >>> import numpy as np
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, member=0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> experts = np.array([[0, 3], [1, 3], [0, 2]], np.uint8)
            >>> _ = forest.append(
            ...     trajectory, [7, 8], kind="action", logprobs=[-0.5, -0.1], columns={"routed_experts": (0, experts)}
            ... )
            >>> forest.finish(trajectory, reward=1.0)
            >>> batch = forest.freeze()
            >>> batch.column("routed_experts", "node_token").tolist()
            [[0, 3], [1, 3], [0, 2], [255, 255]]
            >>> batch.column("routed_experts.known", "node_token").tolist()
            [1, 1, 1, 0]
        """
        return self._core.append(
            trajectory,
            tokens,
            kind=kind,
            logprobs=logprobs,
            entropies=entropies,
            trainable=trainable,
            state=None if state is None else as_bytes(state, "state"),
            policy=policy,
            policy_version=policy_version,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            finish_reason=finish_reason,
            origin=origin,
            blobs=None if blobs is None else list(blobs),
            columns=None if columns is None else dict(columns),
        )

    def step(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        flags: int = 0,
        facts: Mapping[str, FactValue] | None = None,
    ) -> None:
        """Close the open action and record its reward.

        Args:
            trajectory: handle.
            reward: reward of this step; None without a reward.
            rewards: its components.
            terminated: the episode ended in the environment.
            truncated: a limit ended it.
            flags: bits for facts of the turn (`agentrl_core.env.StepFlag`); `UNTRAINED` excludes its tokens from the
                gradient.
            facts: other facts, by the names that the forest declares for steps.

        Raises:
            InvalidInputError: a fact is not declared or of another kind, the reward is infinite, or no action is open.
        """
        self._core.step(
            trajectory,
            reward=reward,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            flags=flags,
            facts=None if facts is None else dict(facts),
        )

    def tokens(self, trajectory: int) -> NDArray[np.int32]:
        """Return the tokens of a trajectory's path, `int32[n]`."""
        return self._core.tokens(trajectory)

    def segment_seed(self, trajectory: int) -> int:
        """Return the 63-bit seed of a trajectory's next segment: a hash of the run's seed and the segment's place."""
        return self._core.segment_seed(trajectory)

    def finish(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        success: bool | None = None,
        info: Mapping[str, Any] | None = None,
        status: Literal["finished", "truncated", "aborted", "failed"] = "finished",
        facts: Mapping[str, FactValue] | None = None,
    ) -> None:
        """End a trajectory. Finished and truncated ones become draws; aborted and failed ones are stored only.

        Args:
            trajectory: handle.
            reward: outcome reward of the whole trajectory; None or NaN: unknown.
            rewards: its components.
            success: whether the task was solved, before any shaping.
            info: facts of the environment, saved as JSON (NaN and infinity as null).
            status: final status.
            facts: other facts, by the names that the forest declares for trajectories.

        Raises:
            InvalidInputError: a fact is not declared or of another kind, the reward is infinite, there is no action.
        """
        text = None if info is None else to_json(info, "info")
        said = None if facts is None else dict(facts)
        self._core.finish(
            trajectory, reward=reward, rewards=rewards, success=success, info=text, status=status, facts=said
        )

    def abort(self) -> None:
        """Mark every running trajectory as aborted, so that all groups can freeze."""
        self._core.abort()

    def log_decision(
        self,
        operation: Operation,
        trajectory: int,
        *,
        in_round: int,
        ordinal: int | None = None,
        node: int | None = None,
        end: int | None = None,
        result: int | None = None,
        score: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Log a program's decision in the table `decisions`, so that the search can be replayed.

        Args:
            operation: name of the decision.
            trajectory: the affected trajectory.
            in_round: round of the search, from 0.
            ordinal: place within the round of the group, if the order matters; None: ordered by the affected
                trajectory.
            node: the affected node.
            end: number of its tokens before the affected place.
            result: the resulting trajectory.
            score: number behind the decision; NaN: it is not known.
            reason: reason in words.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> _ = forest.append(trunk, [1], kind="prompt")
            >>> branch = forest.fork(trunk, ordinal=0)
            >>> forest.log_decision("fork", trunk, in_round=0, result=branch, score=1.25)
        """
        self._core.decide(
            operation,
            trajectory,
            in_round=in_round,
            ordinal=ordinal,
            node=node,
            end=end,
            result=result,
            score=score,
            reason=reason,
        )

    def running(self, group: int | None = None) -> RunningTrajectories:
        """Return the running trajectories of a group, or of all groups, as columns."""
        return RunningTrajectories(**self._core.frontier(group))

    def tree(self, group: int) -> Tree:
        """Return the current token tree of a group; nodes are identified by their handles.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> prompt = forest.append(trunk, [1, 2], kind="prompt")
            >>> branches = [forest.fork(trunk), trunk]
            >>> left, right = (forest.append(branch, [3], kind="observation") for branch in branches)
            >>> tree = forest.tree(0)
            >>> tree.lowest_common_ancestor(left, right) == prompt, tree.depth.tolist(), tree.leaf_count.tolist()
            (True, [0, 1, 1], [2, 1, 1])
        """
        return self._core.tree(group)

    def snapshot(self, group: int) -> tuple[Batch, NDArray[np.int64]]:
        """Return a frozen copy of one live group, such as to score it before it ends.

        Running trajectories have status `partial` and no draws. The ids are valid in the copy only: the group gets its
        own when it freezes.

        Args:
            group: number of the group.

        Returns:
            The batch, and the handle of each row of its `trajectories`, `int64[rows]`. A trajectory without a token has
            no row.

        Raises:
            NotFoundError: the group does not exist, or is frozen.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> over, running = forest.start(0, 0), forest.start(0, 1)
            >>> for trajectory in (over, running):
            ...     _ = forest.append(trajectory, [1, 2], kind="prompt")
            ...     _ = forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
            >>> forest.finish(over, reward=1.0)
            >>> batch, handles = forest.snapshot(0)
            >>> batch.num_draws, handles.tolist() == [over, running], len(forest)
            (1, True, 1)
        """
        batch, handles = self._core.look(group)
        return Batch(batch), handles

    def freeze(self, *, partial: bool = False) -> Batch:
        """Freeze and remove every group whose trajectories have all ended; the others stay live.

        If a batch lacks a group, `repr(forest)` shows how many of its trajectories still run, and `running` lists them:
        end them with `finish` or `abort`, or freeze them unfinished with `partial`.

        Linked groups freeze together. Rows are numbered canonically, from zero or after adopted rows; each finished or
        truncated trajectory is one draw. Prompts of a group share their common prefix: the later one is a child inside
        the earlier one. Other threads can continue with live groups.

        Args:
            partial: freeze the other groups too: running trajectories get status `partial`, are not drawn, and can be
                resumed by `adopt` and `fork` in a later forest.
        """
        return Batch(self._core.freeze(partial))
