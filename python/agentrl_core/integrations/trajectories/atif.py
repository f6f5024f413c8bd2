"""ATIF, the Agent Trajectory Interchange Format of Harbor (version 1.7), in which agents' logs are exchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core.data.batch import Batch
from agentrl_core.engine.chat_messages import joined
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.episodes import (
    Message,
    TrajectoryRecord,
    TrajectoryTurn,
    arguments,
    batch_of,
    episodes_of,
    linear,
    turns_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_VERSION = "ATIF-v1.7"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def from_atif(
    trajectories: Iterable[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Batch:
    """Trajectories in ATIF as a batch of imported trajectories, one draw each.

    Where the agent's steps say `prompt_token_ids` and `completion_token_ids`, these tokens are taken, with their
    `logprobs`. Else the tokenizer's chat template says them, and nobody knows log-probs. ATIF has no reward: it is
    taken from `extra.reward` of the trajectory and of its steps, the task from `extra.task`, the group from
    `extra.group`.

    Args:
        trajectories: the JSON objects.
        tokenizer: of those without token ids; or None.
        chat_template_kwargs: options of its chat template, such as `{"enable_thinking": False}`.

    Raises:
        InvalidInputError: no ATIF, some steps with token ids and others without, or neither ids nor a tokenizer.
        UnsupportedError: contents that are no text, or that the chat template refuses or leaves out; or sub-agents.

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
    template = None if tokenizer is None else ChatTemplate(tokenizer, chat_template_kwargs=chat_template_kwargs)
    return batch_of(_episode(place, trajectory, template) for place, trajectory in enumerate(trajectories))


def _episode(place: int, trajectory: Mapping[str, Any], template: ChatTemplate | None) -> TrajectoryRecord:
    version = trajectory.get("schema_version")
    if not str(version).startswith("ATIF-v1."):
        raise InvalidInputError(f"trajectory {place} has schema_version {version!r}; ATIF-v1 is read")
    if trajectory.get("subagent_trajectories"):
        raise UnsupportedError(f"trajectory {place} holds sub-agents; give their trajectories one by one")
    messages: list[Message] = []
    told: list[dict[str, Any]] = []
    rewards: list[float | None] = []
    for step in trajectory.get("steps") or ():
        extra = step.get("extra") or {}
        message: dict[str, Any] = {"role": _ROLES[step["source"]], "content": _text(place, step.get("message"))}
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        if step.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["tool_call_id"],
                    "type": "function",
                    "function": {"name": call["function_name"], "arguments": json.dumps(call["arguments"])},
                }
                for call in step["tool_calls"]
            ]
        messages.append(message)
        for result in (step.get("observation") or {}).get("results") or ():
            source = {"tool_call_id": result["source_call_id"]} if result.get("source_call_id") else {}
            messages.append({"role": "tool", "content": _text(place, result.get("content")), **source})
        if step["source"] == "agent" and not step.get("is_copied_context"):
            told.append(step.get("metrics") or {})
            rewards.append(extra.get("reward"))
    exact = ["completion_token_ids" in metrics and "prompt_token_ids" in metrics for metrics in told]
    if any(exact) and not all(exact):
        raise InvalidInputError(f"trajectory {place}: some steps of the agent have token ids and others have none")
    said = trajectory.get("extra") or {}
    tools = (trajectory.get("agent") or {}).get("tool_definitions") or ()
    if exact and all(exact):
        turns = [
            TrajectoryTurn(each["prompt_token_ids"], each["completion_token_ids"], each.get("logprobs"))
            for each in told
        ]
    else:
        turns = turns_of(messages, template, tools, chat=f"trajectory {place}")
        if len(turns) != len(rewards):
            raise UnsupportedError(f"trajectory {place} has copied context, which has no token ids of its own")
    task = str(said.get("task", trajectory.get("session_id") or place))
    return TrajectoryRecord(
        task=task,
        group=str(said.get("group", task)),
        turns=[replace(turn, reward=reward) for turn, reward in zip(turns, rewards, strict=True)],
        messages=messages,
        tools=tools,
        reward=said.get("reward"),
        rewards=said.get("rewards") or {},
        success=said.get("success"),
        extra={"agent": dict(trajectory.get("agent") or {}), "session_id": trajectory.get("session_id")},
    )


def to_atif(
    batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None, *, agent: str = "agentrl_core"
) -> Iterator[dict[str, Any]]:
    """The draws of a batch as trajectories in ATIF, with token ids and log-probs of each of the agent's steps.

    Args:
        batch: the batch.
        tokenizer: reads the tokens of draws that were not imported with messages.
        agent: name of the agent, of draws that were not imported with one.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
        UnsupportedError: a draw has several contexts, or another number of answers than turns.
    """
    linear(batch, "ATIF")
    for place, episode in enumerate(episodes_of(batch, tokenizer)):
        steps: list[dict[str, Any]] = []
        turns = iter(episode.turns)
        for message in episode.messages:
            if message["role"] == "tool" and steps:
                observation = steps[-1].setdefault("observation", {"results": []})
                source = {"source_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}
                observation["results"].append({**source, "content": message["content"]})
                continue
            source_name = "agent" if message["role"] == "assistant" else message["role"]
            source_name = "user" if source_name == "tool" else source_name
            step: dict[str, Any] = {
                "step_id": len(steps) + 1,
                "source": source_name,
                "message": message.get("content") or "",
            }
            if message["role"] == "assistant":
                turn = next(turns, None)
                if turn is None:
                    raise UnsupportedError(f"draw {place} has more answers among its messages than turns")
                step |= _agent_step(message, turn)
            steps.append(step)
        if next(turns, None) is not None:
            raise UnsupportedError(f"draw {place} has more turns than answers among its messages")
        said = {
            "task": episode.task,
            "group": episode.group,
            "reward": episode.reward,
            "rewards": dict(episode.rewards) or None,
            "success": episode.success,
        }
        known = dict(episode.extra.get("agent") or {"name": agent, "version": "1"})
        if episode.tools:
            known["tool_definitions"] = list(episode.tools)
        yield {
            "schema_version": _VERSION,
            "session_id": episode.extra.get("session_id") or f"{episode.group}/{place}",
            "agent": known,
            "steps": steps,
            "extra": {name: value for name, value in said.items() if value is not None},
        }


def _agent_step(message: Message, turn: TrajectoryTurn) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": len(turn.context),
        "completion_tokens": len(turn.action),
        "prompt_token_ids": list(turn.context),
        "completion_token_ids": list(turn.action),
    }
    if turn.logprobs is not None:
        metrics["logprobs"] = list(turn.logprobs)
    step: dict[str, Any] = {"metrics": metrics}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = []
        for call in message["tool_calls"]:
            given = arguments(call["function"].get("arguments"))
            if not isinstance(given, dict):
                raise UnsupportedError(f"the arguments {given!r} of a call are no JSON object, which ATIF wants")
            step["tool_calls"].append(
                {"tool_call_id": call["id"], "function_name": call["function"]["name"], "arguments": given}
            )
    if turn.reward is not None:
        step["extra"] = {"reward": turn.reward}
    return step


def _text(place: int, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return joined(content)
    raise UnsupportedError(f"trajectory {place} has contents that are no text, which messages here cannot hold")
