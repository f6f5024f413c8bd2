"""Store turns whose contexts show images, node by node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.forest import Forest
from agentrl_core.exceptions import InvalidInputError


class _ShownNode(NamedTuple):
    """A node with images: its place in a context, and the hashes of its images."""

    begin: int
    end: int
    images: tuple[bytes, ...]


class ImageTurns:
    """Store turns like `Forest.ingest`, with the images that each context shows.

    A context continues the one before if it begins with its tokens and shows the same images there. Else the trajectory
    gets a new context: equal tokens with another image, an image that moved or one that was dropped are a rewrite. It
    shares the tokens up to the first node whose tokens or images differ, and the rest is one `injected` node. A node
    with images is not split. Column `drift` of `steps` is null for these turns.

    Args:
        forest: takes the turns; its blobs have the images.

    Example:
        >>> import numpy as np
        >>> import agentrl_core as arl
        >>> from agentrl_core.data.image_turns import ImageTurns
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> agent, seen = forest.start(0, 0), ImageTurns(forest)
        >>> cat, dog = forest.add_blob(b"a cat"), forest.add_blob(b"a dog")
        >>> prompt, answer = np.array([1, 7, 7], np.int32), np.array([2], np.int32)
        >>> _ = seen.ingest(agent, prompt, [cat], answer)
        >>> _ = seen.ingest(agent, prompt, [dog], answer)        # equal tokens, and another context
        >>> forest.finish(agent, reward=1.0)
        >>> len(forest.freeze().contexts().draws)
        2
    """

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._shown: dict[int, tuple[_ShownNode, ...]] = {}
        self._shown_before: dict[int, tuple[_ShownNode, ...]] = {}
        """Of each action that was stored here, by its node."""

    def fork(self, trajectory: int, node: int) -> None:
        """Note that a trajectory is a fork at an action that was stored here, before its first token or after it."""
        self._shown[trajectory] = self._shown_before[node]

    def ingest(
        self,
        trajectory: int,
        context: NDArray[np.int32],
        images: Sequence[bytes],
        output: NDArray[np.int32],
        *,
        logprobs: NDArray[np.float32] | None = None,
        trainable: NDArray[np.uint8] | None = None,
        policy_version: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        finish_reason: Literal["stop", "length", "abort"] | None = None,
        reward: float = math.nan,
    ) -> int:
        """Store one turn, and return the node of its output.

        Args:
            trajectory: its handle.
            context: tokens that the model read, int32 [n], placeholders of images included.
            images: SHA-256 of the images that the context shows, in their order.
            output: tokens that it sampled, int32 [m].
            logprobs: of the output, float32 [m]; None: unknown.
            trainable: 0/1 for each token of the output; None: all.
            policy_version: version of the weights.
            seed: of the segment.
            temperature: of the sampling; None: unknown.
            top_p: of the sampling.
            finish_reason: why it ended.
            reward: of the turn; NaN: none.

        Raises:
            InvalidInputError: the context is empty, or images have no tokens.
        """
        if not len(context):
            raise InvalidInputError("prompts is empty; a turn has a context and at least one sampled token")
        shown = self._enter(trajectory, context, tuple(images))
        node = self._forest.append(
            trajectory,
            output,
            kind="action",
            logprobs=logprobs,
            trainable=trainable,
            policy_version=policy_version,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            finish_reason=finish_reason,
        )
        self._forest.step(trajectory, reward=None if math.isnan(reward) else reward)
        self._shown[trajectory] = self._shown_before[node] = shown
        return node

    def _enter(self, trajectory: int, context: NDArray[np.int32], images: tuple[bytes, ...]) -> tuple[_ShownNode, ...]:
        """Give a trajectory its next context; return the nodes of it that show images."""
        path = self._forest.tokens(trajectory)
        length = min(len(path), len(context))
        differs = np.flatnonzero(path[:length] != context[:length])
        shared = int(differs[0]) if len(differs) else length
        kept: list[_ShownNode] = []
        count = 0
        for node in self._shown.get(trajectory, ()):
            if node.begin >= shared:
                break
            if node.end > shared or images[count : count + len(node.images)] != node.images:
                shared = node.begin
                break
            kept.append(node)
            count += len(node.images)
        rest, new = context[shared:], images[count:]
        if new and not len(rest):
            raise InvalidInputError(
                f"the context has {len(images)} images, and tokens of {count}; give the tokens of their placeholders"
            )
        # Placeholders of two images are equal, and the states that show them are not.
        state = rest.tobytes() + b"".join(new)
        if shared < len(path):
            places = [(node.begin, image) for node in kept for image in node.images]
            places += [(shared, image) for image in new]
            shared = self._forest.rewrite(trajectory, context, images=places, state=state)
        elif len(rest):
            kind: Literal["prompt", "observation"] = "observation" if len(path) else "prompt"
            self._forest.append(trajectory, rest, kind=kind, state=state if new else None, blobs=new or None)
        if new:
            kept.append(_ShownNode(shared, len(context), new))
        return tuple(kept)
