"""Ingest columns of turns, chats and nodes into a `Forest`: many rows per call, atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.facts import fact_column
from agentrl_core.data.forest_edits import ForestCore
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns as arrays

Lists: TypeAlias = Any
"""A column of lists: an Arrow array of lists of any library and a Polars Series of lists (read in place), a tuple
`(values, offsets)` of NumPy arrays, a two-dimensional array, or a sequence of lists or arrays (None: an empty row)."""

TokenColumn: TypeAlias = Sequence[NDArray[Any] | tuple[int, NDArray[Any]] | None]
"""For each row of a call the rows of a token column, as `Forest.append` takes them; None: it has none."""

Reason: TypeAlias = Literal["stop", "length", "abort"] | None
Role: TypeAlias = Literal["prompt", "action", "observation", "injected", "system", "user", "tool", "assistant"]

DRIFT = ("clean", "realigned", "rewritten", "retokenised", "truncated")
"""Names of the codes of drift."""

_CONTEXT = 4
_KINDS = {
    "prompt": 0,
    "action": 1,
    "observation": 2,
    "injected": 3,
    "assistant": 1,
    "system": _CONTEXT,
    "user": _CONTEXT,
    "tool": _CONTEXT,
}
_REASONS = {None: 0, "stop": 1, "length": 2, "abort": 3}
_TYPES: dict[str, Any] = {"i": np.int32, "f": np.float32, "B": np.uint8}
_RAGGED = {"logprobs": "f", "entropies": "f", "trainable": "B", "rewards": "f"}
_FLAT: dict[str, Any] = {
    "policy": np.int32,
    "policy_version": np.int64,
    "seed": np.int64,
    "reward": np.float32,
    "terminated": np.uint8,
    "truncated": np.uint8,
    "flags": np.uint32,
}


@dataclass(frozen=True, slots=True)
class Ingested:
    """Result of ingested turns, one row per turn."""

    nodes: NDArray[np.int64]
    """Handles of the outputs' nodes, `int64[turns]`."""
    drift: NDArray[np.uint8]
    """Agreement of each prompt with earlier turns: codes of `DRIFT`, `uint8[turns]`."""
    drift_at: NDArray[np.int32]
    """Position of the first differing token, -1 without one, `int32[turns]`."""

    def counts(self) -> dict[str, int]:
        """Return the number of turns of each class of drift."""
        found = np.bincount(self.drift, minlength=len(DRIFT)).tolist()
        return dict(zip(DRIFT, found, strict=True))


def ingest(
    forest: ForestCore,
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
    - `truncated`: only tokens are missing: the context is a prefix of the one before, or skips tokens before its last
    output.
    - `retokenised`: the same text in other tokens; detected only with a `vocabulary`, and then exactly.
    - `realigned`: only the end of the last output differs, by at most `realign` tokens: a stop token that the chat
    template strips, adds, or merges with the next text.
    - `rewritten`: anything else, such as an edited message, a summary, or another agent's prompt.

    If a turn is not clean, the trajectory continues in another context, which forks from the most similar one at the
    first differing token. Tokens that replace tokens there, or repeat its end, are `injected` nodes with the
    `origin_node_id` of their source; later tokens are an `observation`. A context without a common prefix is a
    `prompt`. A repetition must have 8 tokens, or be all of the last output.

    A turn that the trajectory already has is refused: the same context and action, with log-probs, seed and all other
    sampling fields. A repeated message looks like equal tokens sampled twice; in the second case, give each turn a
    different `seed`, and both are stored and trained.

    With `images`, contexts with equal tokens are equal only if they show the same images. A node with images is shared
    whole, with the same images, or not at all, since it is not known which of its tokens stand for them. A context that
    repeats earlier tokens with another image, an image that moved, or without one is `rewritten`, and `drift_at` is
    then the start of that node. New images of a context that is not clean are in one `injected` node.

    The rules deliberately differ from other systems. slime replaces a drifted output by untrained context (its REALIGN)
    unless it is long; SkyRL starts another row if a prompt is not an exact extension. Here a drifted context is also
    another row, and all sampled tokens keep their gradient.

    Args:
        trajectories: handle of each turn's trajectory, `int64[turns]`; turns of one trajectory are in order.
        prompts: token ids of each turn's whole context; see `Lists` for accepted columns of lists.
        outputs: sampled token ids, at least one.
        logprobs: behaviour log-prob of each sampled token, nats (any value, including None, if `trainable` is 0);
            empty: unknown.
        entropies: entropy of the sampling distribution at each token, nats.
        trainable: 0/1 for each sampled token; an empty row means all of them.
        state: identity of the environment's state, bytes or text, hashed to `steps.state_key`; an empty row means the
            context's new tokens.
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
        facts: other facts, by the names that the forest declares for steps: one column each, of numbers (NaN: missing)
            or of texts or bytes (None: missing).
        columns: rows of several values for each token, by the names of their columns: for each turn the rows of its
            output, an array `[tokens, width]`; or a pair `(position, rows)` that begins at another token of context
            and output, such as `(0, routed_experts)`; or None. See `Forest.append`.
        vocabulary: bytes of each token id, by row: an Arrow array of binary, or a list of bytes.
        images: SHA-256 of the images that each turn's context shows, in the order of their tokens, a row for each turn;
            the forest has their blobs (`add_blob`). None: images are not compared.
        realign: see above; with 0 every change of an output is a rewrite.

    Returns:
        Node, class and first differing position of each turn.

    Raises:
        InvalidInputError: a turn has no context or output or is already stored, lengths differ, the log-prob of a
            trained token is NaN or positive, images have no tokens, or a trajectory has ended. The message names turn,
            trajectory, argument and value, and nothing of the call is stored.
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
    handles = arrays.integers(trajectories, "trajectories")
    known = None
    if isinstance(prompts, list) and images is None:
        prompts, known = _without_known(handles, prompts)
    turns = _columns_of(
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
        turns["vocabulary"] = _texts(vocabulary, "vocabulary")
    return Ingested(*_core.ingest(forest._core, turns, realign))


def append_many(
    forest: ForestCore,
    trajectories: object,
    tokens: Lists,
    *,
    kind: Role | Sequence[Role] | NDArray[np.uint8],
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
    turns = _columns_of(trajectories, {"tokens": tokens}, given)
    kinds = _codes(kind, "kind", _KINDS, len(turns["trajectories"]))
    return _core.append_many(forest._core, turns, kinds)


def append_chats(
    forest: ForestCore,
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
    turns = _columns_of(trajectories, {"tokens": tokens}, given)
    turns["sampled"] = _lists(sampled, "sampled", "B")
    return _core.append_chats(forest._core, turns)


def _columns_of(trajectories: object, tokens: Mapping[str, Lists], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all given columns as flat memory for the core."""
    handles = arrays.integers(trajectories, "trajectories")
    turns: dict[str, Any] = {"trajectories": handles}
    for name, values in tokens.items():
        turns[name] = _lists(values, name, "i")
    for name, values in given.items():
        if values is None:
            continue
        if name in _RAGGED:
            turns[name] = _lists(values, name, _RAGGED[name])
        elif name in _FLAT:
            turns[name] = _each(values, name, _FLAT[name], len(handles))
        elif name == "state":
            turns[name] = _texts(values, name)
        elif name == "facts":
            turns[name] = {fact: fact_column(column, f"facts[{fact!r}]") for fact, column in values.items()}
        elif name == "columns":
            turns[name] = {column: _given(rows, column, len(handles)) for column, rows in values.items()}
        elif name == "finish_reason":
            turns[name] = _codes(values, name, _REASONS, len(handles))
        else:
            turns[name] = values
    return turns


def _without_known(handles: NDArray[np.int64], prompts: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Remove from contexts the previous context of their trajectory, if it is a prefix, and return its length.

    Python compares lists much faster than it copies them, so the context so far is kept in a list that only grows by
    new tokens.
    """
    rest, known = list(prompts), np.zeros(len(prompts), np.int64)
    before: dict[int, list[int]] = {}
    for row, (handle, prompt) in enumerate(zip(handles.tolist(), prompts, strict=False)):
        if not isinstance(prompt, list):
            before.pop(handle, None)
            continue
        last = before.get(handle, [])
        length = len(last)
        new = prompt[length:]
        last += new
        if length and last == prompt:
            rest[row], known[row] = new, length
        else:
            before[handle] = prompt.copy()
    return rest, known


def _each(values: Any, name: str, dtype: Any, count: int) -> NDArray[Any]:
    """Return one value for every row, or a column of them."""
    wide = arrays.numbers if dtype is np.float32 else arrays.integers
    if dtype is np.uint8 and not np.isscalar(values):
        values = arrays.column(values, name)
        values = values.astype(np.int64) if values.dtype.kind in "fiub" else values
    found = wide([values] if np.isscalar(values) else values, name, length=None if np.isscalar(values) else count)
    with np.errstate(over="ignore"):  # what is too large is infinite then, and refused
        narrow = found.astype(dtype)
    if dtype is not np.float32 and not np.array_equal(narrow, found):
        row = int(np.flatnonzero(narrow != found)[0])
        raise InvalidInputError(f"{name}[{row}] is {found[row]}; give numbers that fit {np.dtype(dtype)}")
    return np.full(count, narrow[0]) if np.isscalar(values) else np.ascontiguousarray(narrow)


def _codes(values: Any, name: str, known: Mapping[Any, int], count: int) -> NDArray[np.uint8]:
    """Return codes of names: one for all rows, or one per row."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint8:
        found = values
    elif values is None or isinstance(values, str):
        found = np.full(count, _code(values, name, known), np.uint8)
    else:
        found = np.fromiter((_code(value, name, known) for value in _rows(values, name)), np.uint8)
    if len(found) != count:
        raise InvalidInputError(f"{name} has {len(found)} rows, but trajectories has {count}; give one for each")
    return np.ascontiguousarray(found)


def _code(value: object, name: str, known: Mapping[Any, int]) -> int:
    if not isinstance(value, (str, type(None))) or value not in known:
        raise InvalidInputError(f"{name} is {value!r}; use one of {list(known)}")
    return known[value]


def _texts(values: Any, name: str) -> Any:
    """Return a column of bytes."""
    if arrays.is_arrow(values) or isinstance(values, tuple):
        return values
    texts = [
        b"" if row is None else arrays.as_bytes(row, f"{name}[{index}]")
        for index, row in enumerate(_rows(values, name))
    ]
    return np.frombuffer(b"".join(texts), np.uint8), _offsets(texts, name)


def _rows(values: Any, name: str) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise InvalidInputError(
            f"{name} is {type(values).__name__}; give a column with one row per trajectory"
        ) from None


def _given(values: Any, name: str, count: int) -> list[Any]:
    """Return what each row of the call gives of a token column."""
    rows = _rows(values, f"columns[{name!r}]")
    if len(rows) != count:
        raise InvalidInputError(
            f"columns[{name!r}] has {len(rows)} rows, but trajectories has {count}; give one for each (None: no rows)"
        )
    return rows


def _offsets(rows: Sequence[Any], name: str) -> NDArray[np.int64]:
    try:
        return np.fromiter(accumulate(map(len, rows), initial=0), np.int64, len(rows) + 1)
    except TypeError:
        raise InvalidInputError(f"{name} has rows without a length; give a column of lists") from None


def _lists(values: Any, name: str, code: str) -> Any:
    """Return a column of lists for the core: an Arrow array unchanged, or flat values and offsets."""
    dtype = _TYPES[code]
    if arrays.is_arrow(values):
        return values
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(part, np.ndarray) for part in values):
        return _narrow(values[0], name, dtype), arrays.integers(values[1], f"offsets of {name}")
    if isinstance(values, np.ndarray) and values.ndim == 2:
        rows, width = values.shape
        return _narrow(values.reshape(-1), name, dtype), np.arange(rows + 1, dtype=np.int64) * width
    rows = [() if row is None else row for row in _rows(values, name)]
    offsets = _offsets(rows, name)
    nested = next((index for index, row in enumerate(rows) if getattr(row, "ndim", 1) != 1), None)
    if nested is not None:
        raise InvalidInputError(f"{name}[{nested}] has shape {tuple(rows[nested].shape)}; a row is one list of values")
    if rows and all(isinstance(row, np.ndarray) for row in rows):
        return _narrow(np.concatenate(rows), name, dtype), offsets
    lists = [row if isinstance(row, list) else list(row) for row in rows]
    return _core.columns.flat_lists(lists, name, dtype.__name__), offsets


def _narrow(values: NDArray[Any], name: str, dtype: Any) -> NDArray[Any]:
    """Return flat values in the dtype and memory layout of the core."""
    if dtype is np.float32:
        values = values.astype(np.float64) if values.dtype == np.object_ else values  # None is NaN, as in lists
        with np.errstate(over="ignore"):
            found = arrays.numbers(values, name).astype(np.float32, copy=False)
    elif values.dtype == np.bool_:
        found = values.astype(dtype)
    elif values.dtype == dtype and values.ndim == 1:
        found = values
    else:
        wide = arrays.integers(values, name)
        found = wide.astype(dtype)
        if not np.array_equal(found, wide):
            at = int(np.flatnonzero(found != wide)[0])
            raise InvalidInputError(f"{name}[{at}] is {wide[at]}; give numbers that fit {np.dtype(dtype)}")
    return np.require(found, requirements=("C", "A"))
