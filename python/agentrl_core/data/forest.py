"""Forest: the growing data of running rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._core import Tree
from agentrl_core._util.json_text import to_json
from agentrl_core.data import forest_ingest as ingest
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest_ingest import Ingested, Lists, Reason, TokenColumn
from agentrl_core.data.forest_ingest import Role as ChatRole
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.columns import as_bytes, integers

Tokens = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]
Floats = Sequence[float] | NDArray[np.float32] | NDArray[np.float64]
FactValue = float | str | bytes | None
"""A fact: a number, or a key (a text, or bytes, stored as hexadecimal digits); None: missing."""
Kind = Literal["prompt", "action", "observation", "injected"]
Origin = Literal["generated", "expert", "imagined", "imported"]
Role = Literal["member", "baseline", "helper"]
MOST_FORKS = 1 << 20
"""How many ways one call forks: each takes memory."""
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
        """Number of the iteration whose rollouts the forest collects."""
        return self._core.iteration

    def __len__(self) -> int:
        """Number of live groups."""
        return len(self._core)

    def __repr__(self) -> str:
        """Show live groups, and those that cannot freeze yet because of running trajectories."""
        numbers, counts = np.unique(self.running().group, return_counts=True)
        listed = [f"{count} in group {number}" for number, count in zip(numbers[:5], counts[:5], strict=True)]
        more = ["..."] if len(numbers) > len(listed) else []
        running = f"; {counts.sum()} trajectories run: {', '.join(listed + more)}" if len(numbers) else ""
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
        origin: Origin = "generated",
        role: Role = "member",
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
        table = None if facts is None else dict(facts)
        self._core.finish(
            trajectory, reward=reward, rewards=rewards, success=success, info=text, status=status, facts=table
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

    def ingest(
        self,
        trajectories: object,
        prompts: Lists,
        outputs: Lists,
        *,
        logprobs: Lists | None = None,
        entropies: Lists | None = None,
        trainable: Lists | None = None,
        state: Lists | None = None,
        policy: object = None,
        policy_version: object = None,
        seed: object = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        finish_reason: Reason | Sequence[Reason] = None,
        reward: object = None,
        rewards: Lists | None = None,
        terminated: object = None,
        truncated: object = None,
        flags: object = None,
        facts: Mapping[str, object] | None = None,
        columns: Mapping[str, TokenColumn] | None = None,
        vocabulary: Lists | None = None,
        images: Sequence[Sequence[bytes]] | None = None,
        realign: int = 8,
    ) -> Ingested:
        """Store turns as recorded by an engine: the whole context of each, and its sampled tokens.

        Each context is merged into the tree by its longest common prefix with current and earlier contexts of its
        trajectory, so only new tokens are stored. Each output is the action of a new step and is trained once, in the
        context in which it was sampled, even if later contexts change it. Every turn is classified (`steps.drift`,
        `steps.drift_at`):

        - `clean`: the context continues an earlier one, including its output, or is the first.
        - `truncated`: only tokens are missing: the context is a prefix of the one before, or skips tokens before its
        last output.
        - `retokenised`: the same text in other tokens; detected only with a `vocabulary`, and then exactly.
        - `realigned`: only the end of the last output differs, by at most `realign` tokens: a stop token that the chat
        template strips, adds, or merges with the next text.
        - `rewritten`: anything else, such as an edited message, a summary, or another agent's prompt.

        If a turn is not clean, the trajectory continues in another context, which forks from the most similar one at
        the first differing token. Tokens that replace tokens there, or repeat its end, are `injected` nodes with the
        `origin_node_id` of their source; later tokens are an `observation`. A context without a common prefix is a
        `prompt`. A repetition must have 8 tokens, or be all of the last output.

        A turn that the trajectory already has is refused: the same context and action, with log-probs, seed and all
        other sampling fields. A repeated message looks like equal tokens sampled twice; in the second case, give each
        turn a different `seed`, and both are stored and trained.

        With `images`, contexts with equal tokens are equal only if they show the same images. A node with images is
        shared whole, with the same images, or not at all, since it is not known which of its tokens stand for them. A
        context that repeats earlier tokens with another image, an image that moved, or without one is `rewritten`, and
        `drift_at` is then the start of that node. New images of a context that is not clean are in one `injected` node.

        The rules deliberately differ from other systems. slime replaces a drifted output by untrained context (its
        REALIGN) unless it is long; SkyRL starts another row if a prompt is not an exact extension. Here a drifted
        context is also another row, and all sampled tokens keep their gradient.

        Args:
            trajectories: handle of each turn's trajectory, `int64[turns]`; turns of one trajectory are in order.
            prompts: token ids of each turn's whole context; see `Lists` for accepted columns of lists.
            outputs: sampled token ids, at least one.
            logprobs: behaviour log-prob of each sampled token, nats (any value, including None, if `trainable` is 0);
                empty: unknown.
            entropies: entropy of the sampling distribution at each token, nats.
            trainable: 0/1 for each sampled token; an empty row means all of them.
            state: identity of the environment's state, bytes or text, hashed to `steps.state_key`; an empty row means
                the context's new tokens.
            policy: number of the policy; one value for all turns, or `int32[turns]`, like the following arguments.
            policy_version: version of its weights.
            seed: seed of the segment.
            temperature: softmax temperature of all turns, one number; None: unknown.
            top_p: their nucleus mass, 1 keeps everything.
            top_k: their number of tokens kept, 0 keeps everything.
            finish_reason: reason why sampling stopped; one for all turns or one per turn.
            reward: reward of the turn; NaN without one.
            rewards: its components, a column of lists.
            terminated: whether the episode ended in the environment.
            truncated: whether a limit ended it.
            flags: bits for facts of the turn.
            facts: other facts, by the names that the forest declares for steps: one column each, of numbers (NaN:
                missing) or of texts or bytes (None: missing).
            columns: rows of several values for each token, by the names of their columns: for each turn the rows of its
                output, an array `[tokens, width]`; or a pair `(position, rows)` that begins at another token of context
                and output, such as `(0, routed_experts)`; or None. See `Forest.append`.
            vocabulary: bytes of each token id, by row: an Arrow array of binary, or a list of bytes.
            images: SHA-256 of the images that each turn's context shows, in the order of their tokens, a row for each
                turn; the forest has their blobs (`add_blob`). None: images are not compared.
            realign: see above; with 0 every change of an output is a rewrite.

        Returns:
            Node, class and first differing position of each turn.

        Raises:
            InvalidInputError: a turn has no context or output or is already stored, lengths differ, the log-prob of a
                trained token is NaN or positive, images have no tokens, or a trajectory has ended. The message names
                turn, trajectory, argument and value, and nothing of the call is stored.
            NotFoundError: a trajectory or a blob does not exist.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> session = forest.start(0, 0)
            >>> turns = forest.ingest(
            ...     [session, session],
            ...     prompts=[[1, 2], [1, 2, 3, 4, 5]],
            ...     outputs=[[3, 4, 9], [6, 9]],
            ...     logprobs=[[-0.5, -0.1, -0.2], [-0.3, -0.1]],
            ... )
            >>> turns.counts()["realigned"], turns.drift_at.tolist()        # the template strips token 9
            (1, [-1, 4])
            >>> forest.finish(session, reward=1.0)
            >>> forest.freeze()
            Batch(1 draws in 1 groups, 1 trajectories, 4 nodes)
        """
        handles = integers(trajectories, "trajectories")
        known = None
        if isinstance(prompts, list) and images is None:
            prompts, known = ingest.without_known(handles, prompts)
        turns = ingest.columns_of(
            handles,
            {"outputs": outputs, "prompts": prompts},
            {
                "logprobs": logprobs,
                "entropies": entropies,
                "trainable": trainable,
                "state": state,
                "policy": policy,
                "policy_version": policy_version,
                "seed": seed,
                "sampling": None if temperature is None else (temperature, top_p, top_k),
                "finish_reason": finish_reason,
                "reward": reward,
                "rewards": rewards,
                "terminated": terminated,
                "truncated": truncated,
                "flags": flags,
                "facts": facts,
                "columns": columns,
            },
        )
        if known is not None:
            turns["known"] = known
        if images is not None:
            turns["images"] = images
        if vocabulary is not None:
            turns["vocabulary"] = ingest.texts(vocabulary, "vocabulary")
        return Ingested(*_core.ingest(self._core, turns, realign))

    def append_many(
        self,
        trajectories: object,
        tokens: Lists,
        *,
        kind: ChatRole | Sequence[ChatRole] | NDArray[np.uint8],
        logprobs: Lists | None = None,
        entropies: Lists | None = None,
        trainable: Lists | None = None,
        state: Lists | None = None,
        policy: object = None,
        policy_version: object = None,
        seed: object = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        finish_reason: Reason | Sequence[Reason] = None,
        reward: object = None,
        rewards: Lists | None = None,
        terminated: object = None,
        truncated: object = None,
        flags: object = None,
        facts: Mapping[str, object] | None = None,
        columns: Mapping[str, TokenColumn] | None = None,
    ) -> NDArray[np.int64]:
        """Append many nodes in one call, in order and atomically, without holding the interpreter's lock.

        Args:
            trajectories: handle of each row's trajectory, `int64[rows]`.
            tokens: token ids of each row; see `Lists` for accepted columns of lists.
            kind: kind of each row, or one for all: a kind of node, its code (`uint8[rows]`), or a role of a chat.
                `assistant` is an action; `system`, `user` and `tool` are the prompt before the first action and an
                observation after it.
            logprobs: as in `ingest`, like the following arguments. Sampling fields are stored for actions only.
            entropies: entropy at each token.
            trainable: 0/1 for each token of an action.
            state: identity of the state after an observation.
            policy: number of the policy.
            policy_version: version of its weights.
            seed: seed of the segment.
            temperature: softmax temperature of all actions.
            top_p: their nucleus mass.
            top_k: their number of tokens kept.
            finish_reason: reason why sampling stopped.
            reward: reward of the step; a row with this or a following argument closes its step.
            rewards: components of the reward.
            terminated: whether the episode ended in the environment.
            truncated: whether a limit ended it.
            flags: bits for facts of the turn.
            facts: other facts, one column for each declared name.
            columns: rows of several values for each token, by the names of their columns: for each row of the call what
                `Forest.append` takes, or None.

        Returns:
            The nodes, `int64[rows]`.

        Raises:
            InvalidInputError: as for `append`; the message names the row, and nothing of the call is stored.
            NotFoundError: a trajectory does not exist.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> chats = [forest.start(0, member) for member in range(2)]
            >>> _ = forest.append_many(chats, [[1, 2], [1, 2]], kind="prompt")
            >>> logprobs = [[-0.1], [-0.2, -0.3]]
            >>> _ = forest.append_many(chats, [[3], [4, 5]], kind="action", logprobs=logprobs, reward=[1, 0])
            >>> forest.tokens(chats[1]).tolist()
            [1, 2, 4, 5]
        """
        given = {
            "logprobs": logprobs,
            "entropies": entropies,
            "trainable": trainable,
            "state": state,
            "policy": policy,
            "policy_version": policy_version,
            "seed": seed,
            "sampling": None if temperature is None else (temperature, top_p, top_k),
            "finish_reason": finish_reason,
            "reward": reward,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "flags": flags,
            "facts": facts,
            "columns": columns,
        }
        turns = ingest.columns_of(trajectories, {"tokens": tokens}, given)
        kinds = ingest.codes(kind, "kind", ingest.KINDS, len(turns["trajectories"]))
        return _core.append_many(self._core, turns, kinds)

    def append_chats(
        self,
        trajectories: object,
        tokens: Lists,
        sampled: Lists,
        *,
        logprobs: Lists | None = None,
        entropies: Lists | None = None,
        trainable: Lists | None = None,
        policy_version: object = None,
        reward: object = None,
    ) -> NDArray[np.int64]:
        """Append whole chats, one per row, as in data sets: token ids and a mask of the assistant's tokens.

        Each run of sampled tokens is the action of one step; the rest is the prompt before the first action and an
        observation after it. Log-probs may be absent. Start the trajectories with `origin="imported"` or `"expert"`.

        Args:
            trajectories: handle of each chat's trajectory, `int64[chats]`.
            tokens: token ids of each chat; see `Lists` for accepted columns of lists.
            sampled: 0/1 for each token: whether it belongs to an action.
            logprobs: log-prob of each token, nats; only those of actions are stored.
            entropies: entropy at each token, nats.
            trainable: 0/1 for each token; an empty row means all tokens of actions.
            policy_version: version of the weights that sampled; one for all chats or `int64[chats]`.
            reward: reward of the last action, `float32[chats]`; NaN without one.

        Returns:
            The last node of each chat, `int64[chats]`.

        Raises:
            InvalidInputError: lengths differ, a chat is empty, or a value is invalid; the message names the chat, and
                nothing of the call is stored.
            NotFoundError: a trajectory does not exist.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> chat = forest.start(0, 0, origin="expert")
            >>> _ = forest.append_chats([chat], [[1, 2, 3, 4, 5]], [[0, 0, 1, 1, 0]])
            >>> forest.finish(chat, reward=1.0)
            >>> forest.freeze()
            Batch(1 draws in 1 groups, 1 trajectories, 3 nodes)
        """
        given = {
            "logprobs": logprobs,
            "entropies": entropies,
            "trainable": trainable,
            "policy_version": policy_version,
            "reward": reward,
        }
        turns = ingest.columns_of(trajectories, {"tokens": tokens}, given)
        turns["sampled"] = ingest.lists(sampled, "sampled", "B")
        return _core.append_chats(self._core, turns)

    def adopt(
        self,
        group: int,
        batch: Batch,
        trajectory_id: int,
        *,
        source: Literal["replay", "expert", "failed", "imagined"] | None = None,
    ) -> int:
        """Add a stored trajectory to the tree of a live group, and return its handle.

        Its row, its steps and the nodes of its paths keep their ids and are part of the frozen batch; new rows get
        later numbers. It can be forked at any token and spliced. `fork(handle)` resumes a partial trajectory: it
        inherits its steps and continues its unfinished action.

        Args:
            group: number of the group.
            batch: a batch that holds the trajectory, from a store.
            trajectory_id: its id there.
            source: source of its draw in the frozen batch, as a member of the group; None: no draw.

        Raises:
            NotFoundError: the group or trajectory does not exist.
            InvalidInputError: the group adopted it already.

        Example:
            >>> import agentrl_core as arl
            >>> first = arl.Forest(iteration=0)
            >>> first.add_group(0, "task")
            >>> cut_off = first.start(0, 0)
            >>> _ = first.append(cut_off, [1, 2], kind="prompt")
            >>> _ = first.append(cut_off, [3], kind="action", logprobs=[-0.5], policy_version=0)
            >>> stored = first.freeze(partial=True)
            >>> later = arl.Forest(iteration=1)
            >>> later.add_group(0, "task")
            >>> resumed = later.fork(later.adopt(0, stored, 0))
            >>> _ = later.append(resumed, [4], kind="action", logprobs=[-0.1], policy_version=1)
            >>> later.finish(resumed, reward=1.0)
            >>> later.freeze().column("token", "token").tolist()
            [3, 4]
        """
        return self._core.adopt(group, batch._core, trajectory_id, source=source)

    @overload
    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = ...,
        end: int | None = ...,
        count: None = ...,
        ordinal: int | None = ...,
        train_prefix: bool = ...,
        episode: int | None = ...,
    ) -> int: ...

    @overload
    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = ...,
        end: int | None = ...,
        count: int,
        ordinal: int | None = ...,
        train_prefix: bool = ...,
        episode: int | None = ...,
    ) -> list[int]: ...

    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = None,
        end: int | None = None,
        count: int | None = None,
        ordinal: int | None = None,
        train_prefix: bool = True,
        episode: int | None = None,
    ) -> int | list[int]:
        """Start one or `count` trajectories that share a prefix with another one, and return the handle or handles.

        The other one may be running, ended, pruned, rolled back or adopted: all its tokens still exist.

        Args:
            trajectory: the one to share with.
            node: last shared node; None: the whole path so far. Where the context was rewritten and several contexts
                hold the node, the earliest counts.
            end: how many of that node's tokens are shared; None: all.
            count: fork so many ways, at most 2^20, and return a list; None: one way.
            ordinal: number of the (first) fork among those that leave the trajectory at the same token, which gives it
                its seeds and its place among the rows. None: in order of arrival for seeds, by content for rows; give
                one where several threads fork at the same place and seeds must not depend on which comes first.
            train_prefix: whether the steps that are inherited count as this branch's to train. False: they carry flag
                `UNTRAINED` here, and here alone: a correction is learned, not the mistake before it, which the branch
                that made it trains or not as ever, and so does a fork of this branch. An action that the fork cuts in
                two is a step of the branch itself, and is trained whole.
            episode: a trajectory of the group whose episode it is part of, where several agents play one that was
                forked; None: it begins one.

        Raises:
            InvalidInputError: `end` exceeds the path's tokens of the node, the ordinal is taken, or the episode is of
                another group.
            NotFoundError: the trajectory does not exist, or the node is not on its path.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> node = forest.append(trunk, [1, 2, 3], kind="prompt")
            >>> [forest.tokens(way).tolist() for way in forest.fork(trunk, node=node, end=2, count=2)]
            [[1, 2], [1, 2]]
            >>> wrong = forest.append(trunk, [4], kind="action", logprobs=[-0.5])
            >>> forest.finish(trunk, reward=0.0)
            >>> mended = forest.fork(trunk, train_prefix=False)
            >>> _ = forest.append(mended, [5], kind="observation")
            >>> _ = forest.append(mended, [6], kind="action", logprobs=[-0.5])
            >>> forest.finish(mended, reward=1.0)
            >>> forest.abort()
            >>> batch = forest.freeze()
            >>> batch.column("token", "token").tolist(), batch.column("trainable", "token").tolist()
            ([4, 4, 6], [1, 0, 1])
        """
        if count is not None and count > MOST_FORKS:
            raise InvalidInputError(f"count is {str(count)[:40]}; fork at most {MOST_FORKS} ways at a time")
        ways = self._core.fork(
            trajectory,
            node=node,
            end=end,
            count=1 if count is None else count,
            ordinal=ordinal,
            train_prefix=train_prefix,
            episode=episode,
        )
        return ways[0] if count is None else ways

    def splice(
        self,
        prefix: int,
        suffix: int,
        *,
        from_node: int,
        start: int = 0,
        node: int | None = None,
        end: int | None = None,
    ) -> int:
        """Start a trajectory from the prefix of one and the suffix of another of the same group, and return its handle.

        The suffix is copied: nodes of the same kinds with `origin_node_id` and without log-probs, because they were not
        sampled after this prefix, and its steps with their rewards. The trajectory keeps running.

        Args:
            prefix: the trajectory with the shared prefix.
            suffix: the trajectory with the copied suffix.
            from_node: first copied node, on the path of `suffix`.
            start: number of its tokens to skip.
            node: last shared node of `prefix`; None: all of its path so far.
            end: number of shared tokens of that node; None: all.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> failed, solved = forest.start(0, 0), forest.start(0, 1)
            >>> for trajectory, token in ((failed, 1), (solved, 2)):
            ...     _ = forest.append(trajectory, [0], kind="prompt")
            ...     action = forest.append(trajectory, [token], kind="action", logprobs=[-0.5])
            >>> forest.tokens(forest.splice(failed, solved, from_node=action)).tolist()
            [0, 1, 2]
        """
        return self._core.splice(prefix, node, end, suffix, from_node, start)

    def with_prompt(
        self,
        trajectory: int,
        tokens: Tokens,
        *,
        blobs: Sequence[bytes] | None = None,
        state: bytes | str | None = None,
    ) -> int:
        """Copy the actions of a trajectory after another prompt, and return the handle of the new trajectory.

        Use it to train actions sampled with a demonstration or a hint as if they were sampled without. All nodes from
        the first action on are copied as by `splice`: with the same kinds and `origin_node_id`, but without log-probs,
        because they were not sampled after this prompt (`old_logprob` is `none` until they are recomputed), and with
        the steps and rewards. The trajectory keeps running; `parent_trajectory` names the old one, which does not
        change.

        Args:
            trajectory: handle, running or ended.
            tokens: the other prompt, at least one token.
            blobs: blobs of its tokens, such as images, by the hash from `add_blob`.
            state: identity of the state before the first action; None: unchanged.

        Raises:
            InvalidInputError: the trajectory has no action yet, or its context was rewritten.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> shown = forest.start(0, 0)
            >>> _ = forest.append(shown, [7, 7, 7, 1], kind="prompt")    # a demonstration, then the task
            >>> _ = forest.append(shown, [2, 3], kind="action", logprobs=[-0.5, -0.5])
            >>> forest.finish(shown, reward=1.0)
            >>> forest.tokens(forest.with_prompt(shown, [1])).tolist()
            [1, 2, 3]
        """
        key = None if state is None else as_bytes(state, "state")
        return self._core.under(trajectory, tokens, None if blobs is None else list(blobs), key)

    def rollback(self, trajectory: int, node: int, end: int | None = None) -> int:
        """Go back to an earlier token, and return the handle of the trajectory that continues from it.

        The abandoned trajectory stays in the files, pruned as "rolled back".

        Args:
            trajectory: handle.
            node: the last node to keep.
            end: number of its tokens to keep; None: all.

        Raises:
            InvalidInputError: the trajectory is pruned (fork it) or adopted.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, 0)
            >>> prompt = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
            >>> forest.tokens(forest.rollback(trajectory, prompt)).tolist()
            [1, 2]
        """
        return self._core.rollback(trajectory, node, end)

    def replace(self, trajectory: int, by: int) -> None:
        """Replace this trajectory by another one of the group; this one stays in the files, pruned.

        Its `info` is `{"replaced_by": trajectory_id, ...}`.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> first, better = forest.start(0, 0), forest.start(0, 1)
            >>> forest.replace(first, by=better)
        """
        self._core.replace(trajectory, by)

    def rewrite(
        self,
        trajectory: int,
        tokens: Tokens,
        *,
        images: Sequence[tuple[int, bytes]] = (),
        state: bytes | str | None = None,
    ) -> int:
        """Change the context of a trajectory (memory, summary, window, sub-agent); return the number of shared tokens.

        The context forks from the trajectory's path at the first differing token. Its rest is one node of kind
        `injected`: repeated generated text is not trained again. Earlier steps keep their context, and the trajectory
        trains as one sequence per context.

        Args:
            trajectory: handle; an open action is closed.
            tokens: the whole context, at least one token.
            images: images that the context shows, in order: the place of the first token of each, and its hash from
                `add_blob`. A node with images is shared whole, with the same images, or not at all.
            state: identity of the next state; None: unchanged.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, 0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3, 4, 5], kind="action", logprobs=[-0.5, -0.5, -0.5])
            >>> forest.rewrite(trajectory, [1, 2, 9])
            2
            >>> _ = forest.append(trajectory, [6], kind="action", logprobs=[-0.5])
            >>> forest.finish(trajectory, reward=1.0)
            >>> pack = forest.freeze().plan([0], max_tokens=100)[0]
            >>> pack.input_ids.tolist(), pack.cu_seqlens.tolist()
            ([1, 2, 3, 4, 1, 2, 9], [0, 4, 7])
        """
        key = None if state is None else as_bytes(state, "state")
        return self._core.rewrite(trajectory, tokens, list(images), key)

    def prune(self, trajectory: int, reason: str, *, gradient_only: bool = False) -> None:
        """Remove a trajectory from training; its tokens stay in the files, with the reason in `info`.

        Args:
            trajectory: handle, running or ended.
            reason: the reason.
            gradient_only: whether it continues, is drawn and votes in its group's statistics, and only its tokens are
                not trained (flag `UNTRAINED` on its steps). Other branches train the tokens that it shares.

        Raises:
            InvalidInputError: the trajectory is adopted: stored trajectories never change.
        """
        self._core.prune(trajectory, reason, gradient_only=gradient_only)

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
