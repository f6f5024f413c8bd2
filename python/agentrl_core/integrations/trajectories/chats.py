"""Chats in the format of OpenAI's API, one JSON object each, as in data sets for fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core.data.batch import Batch
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.chat_messages import is_trained, plain_tools
from agentrl_core.engine.chat_renderer import checked_options
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.decoded_texts import decoded_turn, is_decoded
from agentrl_core.integrations.trajectories.original_record import ATIF, CHATS, as_given, carried, changed, names_of
from agentrl_core.integrations.trajectories.readers.messages import odd_message
from agentrl_core.integrations.trajectories.recorded_tokens import AFTER, TOKEN_KEYS, recorded_turns
from agentrl_core.integrations.trajectories.trajectory_record import (
    TrajectoryRecord,
    TrajectoryTurn,
    batch_of,
    episodes_of,
    has_images,
    linear,
    named,
    template_of,
    tokenizer_of,
    turns_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

_FACTS = frozenset(("messages", "tools", "task", "group", "reward", "success", "step_rewards"))


def from_chats(
    chats: Iterable[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Batch:
    """Return chats as a batch of imported trajectories, one draw each; every assistant message is an action.

    Token ids come from the tokenizer's chat template, without log-probs: such rows train at ratio 1. An action is the
    text that the model must generate: reasoning, content, calls and the token that ends the turn. The rendered text
    must contain all of it, and all messages before it; otherwise the chat is refused. If a template changes earlier
    turns, a new context begins, as in deployment. Reasoning that a template strips from history is not an error.

    Image parts (`image_url` with a base64 `data:` URL, in messages of users and tools) become blobs of the nodes, and
    placeholders of the template, which a processor expands. Column `info` has their hashes in place of the bytes.

    Texts in parts are joined by newlines, as in vLLM. Reasoning may be named `reasoning_content`, `reasoning` or
    `thinking`. The tokens of an answer with `weight` 0 (or `loss_weight`, `train`, `training`, `trainable`, or
    `is_demo` true) are stored but not trained.

    The tokens of a record with token ids are used unchanged, without a template: `input_ids` with `labels` (-100) or a
    mask, `prompt_ids` with `completion_ids`, or `turns` of such pairs. So are `prompt` and `completion` as plain texts
    (`recorded_tokens`). `read` makes such records from files.

    Args:
        chats: objects with `messages`, and optionally `tools`, `task`, `group` (default: the task), `reward`, `success`
            and `step_rewards`, one number for each message of the assistant. Column `info` stores the whole chat, or
            for a record with token ids the fields that are not tokens.
        tokenizer: tokenizer with a chat template, or the processor of a model that supports images; None: all records
            have token ids.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`. A chat may have its own
            options in a key of this name.

    Raises:
        InvalidInputError: a chat has no messages, or none of the assistant; or a message has an invalid form.
        UnsupportedError: a content is neither text nor such an image, or the template refuses it or leaves it out.

    Example:
        >>> from agentrl_core import env, warm_start
        >>> from agentrl_core.integrations.trajectories import from_chats, to_chats
        >>> tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)[1]
        >>> chat = {
        ...     "messages": [
        ...         {"role": "user", "content": "2 + 2 ="}, {"role": "assistant", "content": "<answer>4</answer>"},
        ...     ],
        ...     "task": "sum", "reward": 1.0,
        ... }
        >>> batch = from_chats([chat], tokenizer)
        >>> batch, list(to_chats(batch)) == [chat]
        (Batch(1 draws in 1 groups, 1 trajectories, 2 nodes), True)
    """
    episodes = []
    templates: dict[tuple[str, bool], ChatTemplate | Chat] = {}
    shared = checked_options(chat_template_kwargs)
    for place, chat in enumerate(chats):
        record: object = chat
        messages = record.get("messages") if isinstance(record, Mapping) else None
        plain_tokenizer = tokenizer_of(tokenizer)
        stored = recorded_turns(chat, plain_tokenizer, f"chat {place}") if isinstance(record, Mapping) else None
        if messages is None and (stored is not None or (isinstance(record, Mapping) and is_decoded(chat))):
            messages = []
        if not isinstance(record, Mapping):
            raise InvalidInputError(f"chat {place} is {record!r:.60}; give an object with a list of messages")
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
            raise InvalidInputError(
                f"chat {place}: {odd_message(messages, 'messages')}; give a list of objects with a role"
            )
        with named(f"chat {place}"):
            options = {**shared, **checked_options(chat.get("chat_template_kwargs"))}
        images = has_images(messages)
        known = json.dumps(options, sort_keys=True, default=repr), images
        if stored is None and tokenizer is not None and known not in templates:
            templates[known] = template_of(tokenizer, options, images=images)
        template = templates.get(known)
        if stored is not None and images:
            raise UnsupportedError(
                f"chat {place} has both token ids and images, but not the places of the images among the ids; leave "
                "the ids or the images out"
            )
        if stored is not None:
            turns = stored[0]
        elif is_decoded(chat) and tokenizer is not None and isinstance(template, ChatTemplate):
            turns = [decoded_turn(chat, plain_tokenizer, template, f"chat {place}")]
        else:
            turns = turns_of(messages, template, chat.get("tools") or (), chat=f"chat {place}")
        rewards = chat.get("step_rewards")
        if rewards is not None:
            if not isinstance(rewards, (list, tuple)) or len(rewards) != len(turns):
                known_rewards = (
                    f"has {len(rewards)} values" if isinstance(rewards, (list, tuple)) else f"is {rewards!r:.60}"
                )
                raise InvalidInputError(
                    f"chat {place}: step_rewards {known_rewards}; give {len(turns)} numbers, one for each answer"
                )
            turns = [replace(turn, reward=reward) for turn, reward in zip(turns, rewards, strict=True)]
        task, group = names_of(CHATS, chat)
        task = str(place) if task is None else task
        episodes.append(
            TrajectoryRecord(
                task=task,
                group=task if group is None else group,
                turns=turns,
                reward=chat.get("reward"),
                success=chat.get("success"),
                name=f"chat {place}",
                **_kept(chat, messages, stored),
            )
        )
    return batch_of(episodes)


def _kept(
    chat: Mapping[str, Any], messages: list[Mapping[str, Any]], stored: tuple[list[TrajectoryTurn], list[int]] | None
) -> dict[str, Any]:
    """Return the part of a chat to store: the whole chat, or for a record with tokens its other fields."""
    if messages and stored is None:
        return {"format_name": CHATS, "record": chat}
    extra = {name: value for name, value in chat.items() if name not in _FACTS and name not in TOKEN_KEYS}
    if stored is not None and stored[1]:
        extra[AFTER] = stored[1]
    return {"messages": messages, "tools": plain_tools(chat.get("tools") or (), "the record"), "extra": extra}


def to_chats(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> Iterable[dict[str, Any]]:
    """Return the draws of a batch as chats, without tokens and log-probs, which the format does not have.

    An imported chat is returned unchanged, key by key; only a changed task, group, reward or success is updated. Two
    imported groups with the same task and name get different names.

    Args:
        batch: the batch.
        tokenizer: decodes the tokens of draws that were not imported with messages: the first context becomes a user's
            message, and the tokens after an answer a tool's message.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
        UnsupportedError: a draw with several contexts has no messages, or messages of a trace's branches.
    """
    episodes = episodes_of(batch, tokenizer)
    linear(batch, episodes, "a chat", (CHATS, ATIF, ""))
    for episode in episodes:
        if episode.format_name == CHATS:
            recorded = episode.record.get("step_rewards") or [None] * len(episode.turns)
            step_rewards = [
                as_given(*pair) for pair in zip(recorded, (turn.reward for turn in episode.turns), strict=True)
            ]
            chat = {**episode.record, **changed(CHATS, episode.record, episode.facts)}
            yield chat if step_rewards == recorded else {**chat, "step_rewards": step_rewards}
            continue
        rewards: list[float | None] | None = [turn.reward for turn in episode.turns]
        rewards = rewards if any(reward is not None for reward in rewards or ()) else None
        if rewards is not None and len(episode.turns) < sum(each["role"] == "assistant" for each in episode.messages):
            rewards = _for_answers(episode.messages, rewards)
        fields, others = carried(CHATS, episode.format_name, episode.record)
        shared = {
            "messages": list(episode.messages),
            "tools": list(episode.tools),
            **episode.facts,
            "step_rewards": rewards,
        }
        shared = {name: value for name, value in shared.items() if value is not None and value != []}
        yield {**fields, **shared, **others, **episode.extra}


def _for_answers(messages: Sequence[Mapping[str, Any]], rewards: Sequence[float | None]) -> list[float | None]:
    """Return the rewards of all answers, None for answers that were not sampled."""
    remaining_rewards = iter(rewards)
    answers = [message for message in messages if message["role"] == "assistant"]
    return [next(remaining_rewards, None) if is_trained(message, "a message") else None for message in answers]
