"""Traces of verifiers (version 1): a graph of messages, each with the tokens that it adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.episodes import (
    TrajectoryRecord,
    TrajectoryTurn,
    batch_of,
    episodes_of,
    linear,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def from_verifiers(traces: Iterable[Mapping[str, Any]]) -> Batch:
    """Traces as a batch of imported trajectories, one draw each: every sampled node is a turn, branches included.

    Named rewards become parts of the reward (`reward.<name>`), each with its weight; their sum is the reward. Traces
    of one task are a group. `info["step_rewards"]`, one number for each sampled node, pays the turns.

    Args:
        traces: records of traces, as `Trace.to_record` writes them.

    Raises:
        InvalidInputError: another version, a node without token ids (an evaluation's relay), or log-probs of another
            number of tokens.

    Example:
        >>> from agentrl_core.integrations.trajectories import from_verifiers
        >>> user = {
        ...     "parent": None, "message": {"role": "user", "content": "hi"}, "token_ids": [1, 2], "mask": [False] * 2,
        ... }
        >>> answer = {
        ...     "parent": 0, "message": {"role": "assistant", "content": "yo"}, "sampled": True,
        ...     "token_ids": [3, 4, 5], "mask": [False, True, True], "logprobs": [-0.5, -0.25],
        ... }
        >>> batch = from_verifiers([
        ...     {"version": 1, "task": {"type": "T", "data": {}, "key": "t"}, "nodes": [user, answer],
        ...      "rewards": {"right": {"score": 1.0, "weight": 2.0}}}
        ... ])
        >>> batch.column("reward", "draw").tolist(), batch.column("token", "token").tolist()
        ([2.0], [4, 5])
    """
    return batch_of(_episode(place, trace) for place, trace in enumerate(traces))


def _episode(place: int, trace: Mapping[str, Any]) -> TrajectoryRecord:
    if trace.get("version") != 1:
        raise InvalidInputError(f"trace {place} has version {trace.get('version')!r}; version 1 is read")
    nodes = trace.get("nodes") or ()
    read: list[list[int]] = []  # of each node all tokens up to its end
    paid = (trace.get("info") or {}).get("step_rewards")
    turns: list[TrajectoryTurn] = []
    for number, node in enumerate(nodes):
        tokens, mask = list(node.get("token_ids") or ()), np.asarray(node.get("mask") or (), bool)
        parent = node.get("parent")
        before = [] if parent is None else read[parent]
        read.append(before + tokens)
        if not node.get("sampled"):
            continue
        if not mask.any():
            raise InvalidInputError(
                f"node {number} of trace {place} was sampled and has no token ids; run the rollouts with a client that "
                "records them, or read the messages with from_chats"
            )
        first, logprobs = int(np.flatnonzero(mask)[0]), node.get("logprobs") or None
        action = np.asarray(tokens)[first:]
        if not mask[first:].all() or (logprobs is not None and len(logprobs) != len(action)):
            raise InvalidInputError(
                f"node {number} of trace {place}: what was sampled is {int(mask.sum())} tokens from token {first} on, "
                f"and it has {len(logprobs or ())} log-probs"
            )
        if paid is not None and len(turns) >= len(paid):
            raise InvalidInputError(f"trace {place} has {len(paid)} step_rewards, and more sampled nodes")
        reward = None if paid is None else paid[len(turns)]
        turns.append(TrajectoryTurn(before + tokens[:first], action.tolist(), logprobs, reward))
    task = trace.get("task") or {}
    name = str(task.get("key") or task.get("hash") or place)
    rewards = {
        key: float(value["score"]) * float(value.get("weight", 1.0))
        for key, value in (trace.get("rewards") or {}).items()
        if value is not None
    }
    return TrajectoryRecord(
        task=name,
        group=name,
        turns=turns,
        messages=[node["message"] for node in nodes],
        tools=trace.get("tools") or (),
        reward=sum(rewards.values()) if rewards else None,
        rewards=rewards,
        extra={name: trace[name] for name in ("id", "task", "agent", "info") if trace.get(name)},
    )


def to_verifiers(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> Iterator[dict[str, Any]]:
    """The draws of a batch as records of traces, with tokens, log-probs and, where the batch has one, the advantage.

    The tokens between two answers belong to the message before the second. A record lacks `agent` unless one was
    imported: who ran the rollouts is not known here.

    Args:
        batch: the batch.
        tokenizer: reads the tokens of draws that were not imported with messages.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
        UnsupportedError: a draw has several contexts.
    """
    linear(batch, "a record of verifiers")
    credit = np.asarray(batch.column("advantage", "token"), np.float64) if batch.has("advantage", "token") else None
    bounds, step = batch.offsets("token"), 0
    for episode in episodes_of(batch, tokenizer):
        nodes: list[dict[str, Any]] = []
        turns, read = list(episode.turns), 0
        answers = [place for place, message in enumerate(episode.messages) if message["role"] == "assistant"]
        answers = answers[len(answers) - len(turns) :]  # earlier ones are examples in the prompt
        for place, message in enumerate(episode.messages):
            node: dict[str, Any] = {"parent": place - 1 if place else None, "message": dict(message), "sampled": False}
            tokens: list[int] = []
            sampled = place in answers
            if place + 1 in answers:
                turn = turns[answers.index(place + 1)]
                tokens = list(turn.context[read:])
            if sampled:
                turn = turns[answers.index(place)]
                # A chat that opens with the answer has its opening in the same node.
                tokens = [*([] if place else turn.context), *turn.action]
                node["logprobs"] = list(turn.logprobs or ())
                node["sampled"] = True
                if credit is not None:
                    node["advantages"] = credit[bounds[step] : bounds[step + 1]].tolist()
                step += 1
                read = len(turn.context) + len(turn.action)
            said = len(turn.action) if sampled else 0
            nodes.append({**node, "token_ids": tokens, "mask": [False] * (len(tokens) - said) + [True] * said})
        paid = [turn.reward for turn in turns]
        info = dict(episode.extra.get("info") or {})
        if any(reward is not None for reward in paid):
            info["step_rewards"] = paid
        rewards = dict(episode.rewards)
        if episode.reward is not None and not (rewards and np.isclose(sum(rewards.values()), episode.reward)):
            rewards = {"reward": episode.reward}
        yield {
            "version": 1,
            **{name: value for name, value in episode.extra.items() if name in ("id", "agent")},
            "task": episode.extra.get("task") or {"type": "Task", "data": {}, "key": episode.task},
            "tools": list(episode.tools),
            "nodes": nodes,
            "rewards": {name: {"score": value, "weight": 1.0} for name, value in rewards.items()},
            "info": info,
            "is_completed": True,
            "ok": True,
        }
