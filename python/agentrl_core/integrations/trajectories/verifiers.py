"""Traces of verifiers (version 1): a graph of messages, each with its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agentrl_core.data.batch import Batch
from agentrl_core.env.image import Image, images_in
from agentrl_core.env.message_images import with_images
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.original_record import (
    CARRIED,
    VERIFIERS,
    as_given,
    carried,
    names_of,
    object_of,
)
from agentrl_core.integrations.trajectories.trajectory_record import (
    TrajectoryRecord,
    TrajectoryTurn,
    as_number,
    batch_of,
    episodes_of,
    has_images,
    linear,
    named,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def from_verifiers(traces: Iterable[Mapping[str, Any]]) -> Batch:
    """Return traces as a batch of imported trajectories, one draw each; every sampled node is a turn.

    Column `info` stores the whole trace. Named rewards become parts of the reward (`reward.<name>`), times their
    weights; their sum is the reward. Traces of one task form a group. `info["step_rewards"]`, one number for each
    sampled node, has the rewards of turns.

    Args:
        traces: records of traces, as returned by `Trace.to_record`.

    Raises:
        InvalidInputError: the version differs, a node has no token ids (an evaluation's relay), or the numbers of
            log-probs and tokens differ.

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
    episodes = []
    for place, trace in enumerate(traces):
        with named(f"trace {place}"):
            episodes.append(_episode(place, trace))
    return batch_of(episodes)


def _episode(place: int, trace: Mapping[str, Any]) -> TrajectoryRecord:
    record = cast("object", trace)
    if not isinstance(record, Mapping):
        raise InvalidInputError(f"trace {place} is {record!r:.60}; give an object, as verifiers writes it")
    if trace.get("version") != 1:
        raise InvalidInputError(f"trace {place}: version is {trace.get('version')!r:.40}; give a trace of version 1")
    nodes = trace.get("nodes") or ()
    for number, node in enumerate(nodes):
        if not isinstance(node, Mapping):
            raise InvalidInputError(f"trace {place}: nodes[{number}] is {node!r:.60}; give an object with a message")
        if not isinstance(node.get("message"), Mapping):
            raise InvalidInputError(
                f"trace {place}: nodes[{number}].message is {node.get('message')!r:.60}; give an object such as "
                "{'role': 'user', 'content': '...'}"
            )
    prefixes: list[list[int]] = []  # for each node, all tokens up to its end
    step_rewards = object_of(trace, "info").get("step_rewards")
    turns: list[TrajectoryTurn] = []
    images: list[tuple[Image, ...]] = []  # for each node, all images up to its end
    for number, node in enumerate(nodes):
        tokens, mask = list(node.get("token_ids") or ()), np.asarray(node.get("mask") or (), bool)
        parent = node.get("parent")
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < number):
            raise InvalidInputError(
                f"node {number} of trace {place} has the parent {parent!r:.20}; give an earlier node, or null"
            )
        before = [] if parent is None else prefixes[parent]
        prefixes.append(before + tokens)
        messages_of_node = [node["message"]]
        images_so_far: tuple[Image, ...] = () if parent is None else images[parent]
        if has_images(messages_of_node):
            images_so_far += images_in(with_images(messages_of_node, f"trace {place}: nodes[{number}]"))
        images.append(images_so_far)
        if not node.get("sampled"):
            continue
        if not mask.any():
            missing = "sampled token in its mask" if tokens else "token ids"
            raise InvalidInputError(
                f"node {number} of trace {place} was sampled and has no {missing}; run the rollouts with a client that "
                "records token ids and masks, or read the messages with from_chats"
            )
        first, logprobs = int(np.flatnonzero(mask)[0]), node.get("logprobs") or None
        action = np.asarray(tokens)[first:]
        if not mask[first:].all():
            odd = first + int(np.flatnonzero(~mask[first:])[0])
            raise InvalidInputError(
                f"node {number} of trace {place}: token {first} is sampled, but the later token {odd} is not; mark all "
                "tokens after the first sampled one as sampled"
            )
        if logprobs is not None and len(logprobs) != len(action):
            raise InvalidInputError(
                f"node {number} of trace {place} has {len(logprobs)} log-probs for {len(action)} sampled tokens; give "
                "one for each or none"
            )
        if step_rewards is not None and len(turns) >= len(step_rewards):
            raise InvalidInputError(
                f"trace {place} has {len(step_rewards)} step_rewards, but "
                f"{sum(bool(each.get('sampled')) for each in nodes)} sampled nodes; give one for each sampled node"
            )
        reward = None if step_rewards is None else step_rewards[len(turns)]
        turns.append(TrajectoryTurn(before + tokens[:first], action.tolist(), logprobs, reward, images=images_so_far))
    name, group = names_of(VERIFIERS, trace)
    name = str(place) if name is None else name
    rewards = _rewards_in(trace)
    return TrajectoryRecord(
        task=name,
        group=name if group is None else group,
        turns=turns,
        reward=sum(rewards.values()) if rewards else None,
        rewards=rewards,
        success=object_of(object_of(trace, "info"), CARRIED).get("success"),
        name=f"trace {place}",
        format_name=VERIFIERS,
        record=trace,
    )


def _rewards_in(trace: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts of a trace's reward, each multiplied by its weight."""
    rewards: dict[str, float] = {}
    for name, reward in object_of(trace, "rewards").items():
        if reward is None or (isinstance(reward, Mapping) and reward.get("score") is None):
            continue
        score, weight = (reward.get("score"), reward.get("weight")) if isinstance(reward, Mapping) else (reward, "x")
        weight = 1.0 if weight is None else weight
        if not isinstance(score, Real) or not isinstance(weight, Real):
            raise InvalidInputError(
                f"reward {name!r} is {reward!r:.60}; give a number, or an object with the numbers score and weight"
            )
        rewards[name] = as_number(score, f"reward {name!r}") * as_number(weight, f"weight of reward {name!r}")
    return rewards


def to_verifiers(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> Iterator[dict[str, Any]]:
    """Return the draws of a batch as records of traces, with tokens, log-probs and, if computed, advantages.

    An imported trace is returned unchanged, field by field, with its branches; only changed rewards and the advantages
    are updated. Values without a field in traces, such as the group, are in `info["agentrl"]`. For other draws, the
    tokens between two answers belong to the message before the second one, untrained answers are not marked as sampled,
    and `agent` is missing unless one was imported.

    Args:
        batch: the batch.
        tokenizer: decodes the tokens of draws that were not imported with messages.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
        UnsupportedError: a draw that was not imported as a trace has several contexts.
    """
    episodes = episodes_of(batch, tokenizer)
    linear(batch, episodes, "a record of verifiers", (VERIFIERS,))
    credit = np.asarray(batch.column("advantage", "token"), np.float64) if batch.has("advantage", "token") else None
    bounds, first = batch.offsets("token"), 0
    for draw, episode in enumerate(episodes):
        steps = range(first, first + len(episode.turns))
        first = steps.stop
        advantages = None if credit is None else [credit[bounds[step] : bounds[step + 1]].tolist() for step in steps]
        if episode.format_name == VERIFIERS:
            yield _rewritten(draw, episode, advantages)
        else:
            yield _made(episode, advantages)


def _rewritten(draw: int, episode: TrajectoryRecord, advantages: Sequence[Sequence[float]] | None) -> dict[str, Any]:
    """Return an imported trace unchanged, except for its advantages and changed rewards."""
    nodes = [dict(node) for node in episode.record["nodes"]]
    sampled = [node for node in nodes if node.get("sampled")]
    if len(sampled) != len(episode.turns):
        raise UnsupportedError(
            f"draw {draw} has {len(episode.turns)} turns, but its imported trace has {len(sampled)} sampled nodes; "
            "leave the draw out (batch.select_draws)"
        )
    for node, values in zip(sampled, advantages or (), strict=False):
        node["advantages"] = list(values)
    rewritten = {**episode.record, "nodes": nodes}
    known = _rewards_in(rewritten)
    total = sum(known.values()) if known else None
    if as_given(total, episode.reward) != total:
        rewritten["rewards"] = _rewards_of(episode)
    step_rewards = [turn.reward for turn in episode.turns]
    info = object_of(rewritten, "info")
    recorded = info.get("step_rewards") or [None] * len(step_rewards)
    differs: dict[str, Any] = {}
    if [as_given(*pair) for pair in zip(recorded, step_rewards, strict=True)] != recorded:
        differs["step_rewards"] = step_rewards
    task, group = names_of(VERIFIERS, rewritten)
    if episode.group != (group or task or episode.task):
        differs[CARRIED] = {**object_of(info, CARRIED), "group": episode.group}
    return rewritten | ({"info": {**info, **differs}} if differs else {})


def _made(episode: TrajectoryRecord, advantages: Sequence[Sequence[float]] | None) -> dict[str, Any]:
    """Return a trace, one chain of nodes, for messages not imported as a trace; untrained answers are not `sampled`."""
    fields, others = carried(VERIFIERS, episode.format_name, episode.record)
    fields = fields or {name: episode.extra[name] for name in ("id", "agent", "task", "info") if name in episode.extra}
    nodes: list[dict[str, Any]] = []
    turns, length = list(episode.turns), 0
    answers = [place for place, message in enumerate(episode.messages) if message["role"] == "assistant"]
    answers = answers[len(answers) - len(turns) :]  # earlier ones are examples in the prompt
    for place, message in enumerate(episode.messages):
        node: dict[str, Any] = {"parent": place - 1 if place else None, "message": dict(message), "sampled": False}
        tokens: list[int] = []
        sampled = 0
        if place + 1 in answers:
            turn = turns[answers.index(place + 1)]
            tokens = list(turn.context[length:])
        if place in answers:
            number = answers.index(place)
            turn = turns[number]
            # If a chat starts with the answer, its opening is in the same node.
            tokens = [*([] if place else turn.context), *turn.action]
            length = len(turn.context) + len(turn.action)
            if turn.trained:
                sampled = len(turn.action)
                node["logprobs"] = list(turn.logprobs or ())
                node["sampled"] = True
                if advantages is not None:
                    node["advantages"] = list(advantages[number])
        nodes.append({**node, "token_ids": tokens, "mask": [False] * (len(tokens) - sampled) + [True] * sampled})
    step_rewards = [turn.reward for turn in turns if turn.trained]
    facts = {"group": episode.group} | ({} if episode.success is None else {"success": episode.success})
    info = object_of(fields, "info") | {CARRIED: object_of(others, CARRIED) | facts}
    if any(reward is not None for reward in step_rewards):
        info["step_rewards"] = step_rewards
    return {
        **fields,
        "version": 1,
        "task": fields.get("task") or {"type": "Task", "data": {}, "key": episode.task},
        "tools": list(episode.tools),
        "nodes": nodes,
        "rewards": _rewards_of(episode),
        "info": info,
        "is_completed": True,
        "ok": True,
    }


def _rewards_of(episode: TrajectoryRecord) -> dict[str, Any]:
    rewards = dict(episode.rewards)
    if episode.reward is not None and not (rewards and np.isclose(sum(rewards.values()), episode.reward)):
        rewards = {"reward": episode.reward}
    return {name: {"score": value, "weight": 1.0} for name, value in rewards.items()}
