"""ATIF, the Agent Trajectory Interchange Format of Harbor (version 1.7), for logs of agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from agentrl_core.data.batch import Batch
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.chat_messages import is_trained
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.env.image import images_in
from agentrl_core.env.message_images import with_images
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.atif_steps import is_sampled, messages_of, steps_in, steps_of
from agentrl_core.integrations.trajectories.original_record import (
    ATIF,
    CHATS,
    as_given,
    carried,
    changed,
    names_of,
    object_of,
)
from agentrl_core.integrations.trajectories.trajectory_record import (
    TrajectoryRecord,
    TrajectoryTurn,
    batch_of,
    episodes_of,
    has_images,
    linear,
    named,
    template_of,
    turns_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_VERSION = "ATIF-v1.7"
_IDS = ("prompt_token_ids", "completion_token_ids")
"""Metrics of a step that the batch stores as tokens; log-probs stay in the record, since the batch rounds them."""


def from_atif(
    trajectories: Iterable[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Batch:
    """Return trajectories in ATIF as a batch of imported trajectories, one draw each.

    If the agent's steps have `prompt_token_ids` and `completion_token_ids`, these tokens are used, with their
    `logprobs`. Otherwise the tokenizer's chat template renders them, without log-probs. Steps with copied context, or
    without a model call (`llm_call_count` 0), are not trained. ATIF has no reward: it is read from `extra.reward` of
    the trajectory and of its steps, the task from `extra.task` (or the session's id), the group from `extra.group`.
    Null is the same as a missing field. The whole trajectory except its token ids is saved in column `info`.

    Args:
        trajectories: the JSON objects.
        tokenizer: tokenizer for trajectories without token ids; or None.
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        InvalidInputError: an object is not ATIF, a source is unknown, only some steps have token ids, the numbers of
            log-probs and tokens differ, or there are neither ids nor a tokenizer.
        UnsupportedError: a content is neither text nor an image (base64 `data:` URL in `source.path`), or the chat
            template refuses it or leaves it out; there are sub-agents; a step has token ids of several model calls.

    Example:
        >>> from agentrl_core.integrations.trajectories import from_atif
        >>> metrics = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25]}
        >>> from_atif([{
        ...     "schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "a", "version": "1"},
        ...     "steps": [
        ...         {"step_id": 1, "source": "user", "message": "hi"},
        ...         {"step_id": 2, "source": "agent", "message": "hello", "metrics": metrics},
        ...     ],
        ... }])
        Batch(1 draws in 1 groups, 1 trajectories, 2 nodes)
    """
    template = None if tokenizer is None else template_of(tokenizer, chat_template_kwargs, images=False)
    seeing = cache(lambda: None if tokenizer is None else template_of(tokenizer, chat_template_kwargs, images=True))
    episodes = []
    for number, trajectory in enumerate(trajectories):
        with named(f"trajectory {number}"):
            episodes.append(_episode(number, trajectory, lambda images: seeing() if images else template))
    return batch_of(episodes)


def _episode(
    number: int, trajectory: Mapping[str, Any], template: Callable[[bool], ChatTemplate | Chat | None]
) -> TrajectoryRecord:
    where, record = f"trajectory {number}", cast("object", trajectory)
    if not isinstance(record, Mapping):
        raise InvalidInputError(f"{where} is {record!r:.60}; give an object in ATIF")
    version = trajectory.get("schema_version")
    if not str(version).startswith("ATIF-v1."):
        raise InvalidInputError(
            f"{where}: schema_version is {version!r:.40}; give a trajectory in ATIF-v1.x, such as {_VERSION!r}"
        )
    if trajectory.get("subagent_trajectories"):
        raise UnsupportedError(
            f"{where} has subagent_trajectories; give each of them as a trajectory of its own, without this field"
        )
    messages, sampled = messages_of(trajectory, where)
    numbered = [(at, step) for at, step in enumerate(steps_in(trajectory, where), start=1) if is_sampled(step)]
    steps = [(f"{where}, step {at}", step) for at, step in numbered]
    metrics_of_steps = [object_of(step, "metrics", name) for name, step in steps]
    exact = [metrics.get("completion_token_ids") is not None for metrics in metrics_of_steps]
    exact = [
        known and each.get("prompt_token_ids") is not None for known, each in zip(exact, metrics_of_steps, strict=True)
    ]
    if any(exact) and not all(exact):
        raise InvalidInputError(
            f"{where}, step {numbered[exact.index(False)][0]} lacks prompt_token_ids or completion_token_ids, which "
            f"{sum(exact)} of {len(exact)} steps of the agent have; give both for all steps of the agent or for none"
        )
    tools = object_of(trajectory, "agent").get("tool_definitions") or ()
    images = has_images(messages)
    if all(exact):
        image_messages = with_images(messages, f"{where}: messages") if images else []
        turns = [
            replace(
                _turn(metrics, step, name, trained=is_trained(messages[place], name)),
                images=images_in(image_messages[:place]),
            )
            for (name, step), metrics, place in zip(steps, metrics_of_steps, sampled, strict=True)
        ]
    else:
        turns = turns_of(messages, template(images), tools, chat=where, sampled=sampled)
    extra = object_of(trajectory, "extra")
    task, group = names_of(ATIF, trajectory)
    task = str(number) if task is None else task
    return TrajectoryRecord(
        task=task,
        group=task if group is None else group,
        turns=[
            replace(turn, reward=object_of(step, "extra", name).get("reward"))
            for turn, (name, step) in zip(turns, steps, strict=True)
        ],
        reward=extra.get("reward"),
        rewards=object_of(extra, "rewards"),
        success=extra.get("success"),
        name=where,
        format_name=ATIF,
        record={**trajectory, "steps": [_without_ids(step) for step in steps_in(trajectory, where)]},
    )


def _turn(metrics: Mapping[str, Any], step: Mapping[str, Any], where: str, *, trained: bool) -> TrajectoryTurn:
    """Return the turn of a step with token ids."""
    count = step.get("llm_call_count")
    if count is not None and not isinstance(count, int):
        raise InvalidInputError(f"{where}: llm_call_count is {count!r:.40}; give a whole number")
    if count is not None and count > 1:
        raise UnsupportedError(
            f"{where}: llm_call_count is {count}, so the token ids are of several model calls; give one step for each "
            "call"
        )
    output, logprobs = metrics["completion_token_ids"], metrics.get("logprobs")
    if logprobs is not None and len(logprobs) != len(output):
        raise InvalidInputError(
            f"{where}: logprobs has {len(logprobs)} values for {len(output)} completion_token_ids; give one for each"
        )
    return TrajectoryTurn(metrics["prompt_token_ids"], output, logprobs, trained=trained)


def _without_ids(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a step without the token ids that the batch stores."""
    metrics = step.get("metrics")
    if not (metrics and is_sampled(step)):
        return step
    return {**step, "metrics": {name: value for name, value in metrics.items() if name not in _IDS}}


def to_atif(
    batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None, *, agent: str = "agentrl_core"
) -> Iterator[dict[str, Any]]:
    """Return the draws of a batch as trajectories in ATIF, with token ids and log-probs of each of the agent's steps.

    An imported trajectory is returned unchanged, field by field, with the token ids of its steps; only a changed task,
    group, reward or success is updated. Fields of a chat that ATIF does not have are stored in `extra`.

    Args:
        batch: the batch.
        tokenizer: decodes the tokens of draws that were not imported with messages.
        agent: name of the agent for draws that were not imported with one.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
        UnsupportedError: a draw that was not imported as one chain of messages has several contexts; the numbers of
            answers and turns of a draw differ; ATIF cannot represent a content or arguments.
    """
    episodes = episodes_of(batch, tokenizer)
    linear(batch, episodes, "ATIF", (ATIF, CHATS))
    for place, episode in enumerate(episodes):
        if episode.format_name == ATIF:
            yield _rewritten(place, episode)
        else:
            yield _made(place, episode, agent)


def _rewritten(place: int, episode: TrajectoryRecord) -> dict[str, Any]:
    """Return an imported trajectory unchanged, except for its tokens and changed facts."""
    steps = [dict(step) for step in episode.record["steps"]]
    sampled = [step for step in steps if is_sampled(step)]
    _check_turns(place, episode, len(sampled))
    for step, turn in zip(sampled, episode.turns, strict=True):
        metrics = object_of(step, "metrics")
        known = metrics.get("logprobs")
        if turn.logprobs is None or known is None:
            known = None if turn.logprobs is None else list(turn.logprobs)
        else:
            known = [as_given(*pair) for pair in zip(known, turn.logprobs, strict=True)]
        step["metrics"] = metrics | _ids(turn) | ({} if known is None else {"logprobs": known})
        _pay(step, turn)
    rewritten = {**episode.record, "steps": steps}
    differs = changed(ATIF, episode.record, episode.facts)
    return rewritten | ({"extra": {**object_of(rewritten, "extra"), **differs}} if differs else {})


def _made(place: int, episode: TrajectoryRecord, agent: str) -> dict[str, Any]:
    """Return a trajectory for messages that were not imported as ATIF."""
    fields, others = carried(ATIF, episode.format_name, episode.record)
    fields = fields or {name: episode.extra[name] for name in ("agent", "session_id") if name in episode.extra}
    steps, answers = steps_of(episode.messages, f"draw {place}")
    _check_turns(place, episode, len(answers))
    for number, turn in zip(answers, episode.turns, strict=True):
        step = steps[number]
        counts = {"prompt_tokens": len(turn.context), "completion_tokens": len(turn.action)}
        logprobs = {} if turn.logprobs is None else {"logprobs": list(turn.logprobs)}
        step["metrics"] = counts | _ids(turn) | logprobs
        _pay(step, turn)
    known = {**({"name": agent, "version": "1"} | object_of(fields, "agent"))}
    if episode.tools:
        known["tool_definitions"] = list(episode.tools)
    facts = episode.facts | {"rewards": dict(episode.rewards) or None}
    extra = {name: value for name, value in facts.items() if value is not None}
    return {
        **fields,
        "schema_version": _VERSION,
        "session_id": fields.get("session_id") or f"{episode.group}/{place}",
        "agent": known,
        "steps": steps,
        "extra": {**object_of(fields, "extra"), **extra, **others},
    }


def _check_turns(place: int, episode: TrajectoryRecord, answers: int) -> None:
    if len(episode.turns) != answers:
        raise UnsupportedError(
            f"draw {place} has {len(episode.turns)} turns, but {answers} messages of the assistant, and ATIF needs one "
            "for each turn; leave the draw out (batch.select_draws)"
        )


def _ids(turn: TrajectoryTurn) -> dict[str, Any]:
    return dict(zip(_IDS, (list(turn.context), list(turn.action)), strict=True))


def _pay(step: dict[str, Any], turn: TrajectoryTurn) -> None:
    """Write the reward of a turn into its step, unless the step has it."""
    extra = object_of(step, "extra")
    if turn.reward is not None and as_given(extra.get("reward"), turn.reward) != extra.get("reward"):
        step["extra"] = {**extra, "reward": turn.reward}
