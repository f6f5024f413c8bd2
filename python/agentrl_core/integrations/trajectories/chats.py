"""Chats as OpenAI's API has them, a JSON object each: what fine-tuning data sets are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core.data.batch import Batch
from agentrl_core.engine.chat_messages import plain_tools
from agentrl_core.engine.chat_renderer import checked_options
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.decoded_texts import decoded_turn, is_decoded
from agentrl_core.integrations.trajectories.episodes import TrajectoryRecord, batch_of, episodes_of, turns_of
from agentrl_core.integrations.trajectories.recorded_tokens import AFTER, TOKEN_KEYS, recorded_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OWN = ("messages", "tools", "task", "group", "reward", "success", "step_rewards")


def from_chats(
    chats: Iterable[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Batch:
    """Chats as a batch of imported trajectories, one draw each; every message of an assistant is an action.

    Token ids come from the tokenizer's chat template, and there are no log-probs: such rows train at ratio 1. An action
    is what the model would have to generate: reasoning, content, calls and the token that ends the turn. All of it, and
    all of the messages before it, has to be found in what the template renders; a chat of which something is left out
    is refused. A template that changes earlier turns makes another context, as it would in use: most strip reasoning,
    which is no loss.

    Texts in parts are joined as vLLM joins them. Reasoning may be named `reasoning_content`, `reasoning` or `thinking`.
    An answer with `weight` 0 (or `loss_weight`, `train`, `training`, `trainable`, or `is_demo` true) is context: its
    tokens are kept, and not trained.

    A record with token ids instead is taken as it is, without a template: `input_ids` with `labels` (-100) or a mask,
    `prompt_ids` with `completion_ids`, `turns` of such pairs; also `prompt` and `completion` as plain texts
    (`recorded_tokens`). `read` makes such records of files.

    Args:
        chats: `messages`, and where it has them `tools`, `task`, `group` (default: the task), `reward`, `success` and
            `step_rewards`, one number for each message of the assistant; other keys are kept in column `info`.
        tokenizer: with a chat template; None: all records have token ids.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`. A chat may have its own, in
            a key of this name.

    Raises:
        InvalidInputError: a chat without messages, or without one of the assistant; or a message of another shape.
        UnsupportedError: contents that are no text, or that the template refuses or leaves out.

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
        >>> batch, list(to_chats(batch))[0] == {**chat, "group": "sum/0"}
        (Batch(1 draws in 1 groups, 1 trajectories, 2 nodes), True)
    """
    episodes = []
    templates: dict[str, ChatTemplate] = {}
    for place, chat in enumerate(chats):
        record: object = chat
        messages = record.get("messages") if isinstance(record, Mapping) else None
        stored = recorded_turns(chat, tokenizer, f"chat {place}") if isinstance(record, Mapping) else None
        if messages is None and (stored is not None or (isinstance(record, Mapping) and is_decoded(chat))):
            messages = []
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
            raise InvalidInputError(f"chat {place} has no list 'messages' of objects with a role")
        options = {**checked_options(chat_template_kwargs), **checked_options(chat.get("chat_template_kwargs"))}
        known = json.dumps(options, sort_keys=True, default=repr)
        if stored is None and tokenizer is not None and known not in templates:
            templates[known] = ChatTemplate(tokenizer, chat_template_kwargs=options)
        template = templates.get(known)
        if stored is not None:
            turns = stored[0]
        elif is_decoded(chat) and tokenizer is not None and template is not None:
            turns = [decoded_turn(chat, tokenizer, template, f"chat {place}")]
        else:
            turns = turns_of(messages, template, chat.get("tools") or (), chat=f"chat {place}")
        paid = chat.get("step_rewards")
        if paid is not None:
            if len(paid) != len(turns):
                raise InvalidInputError(f"chat {place} has {len(paid)} step_rewards for {len(turns)} answers")
            turns = [replace(turn, reward=reward) for turn, reward in zip(turns, paid, strict=True)]
        task = str(chat.get("task", place))
        episodes.append(
            TrajectoryRecord(
                task=task,
                group=str(chat.get("group", task)),
                turns=turns,
                messages=messages,
                tools=plain_tools(chat.get("tools") or (), f"chat {place}"),
                reward=chat.get("reward"),
                success=chat.get("success"),
                extra={
                    **{name: value for name, value in chat.items() if name not in _OWN and name not in TOKEN_KEYS},
                    **({AFTER: stored[1]} if stored is not None and stored[1] else {}),
                },
            )
        )
    return batch_of(episodes)


def to_chats(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> Iterable[dict[str, Any]]:
    """The draws of a batch as chats. Tokens and log-probs do not fit into this format and are left out.

    Args:
        batch: the batch.
        tokenizer: reads the tokens of draws that were not imported with messages: the first context is then one
            message of the user, and what follows an answer one of a tool.

    Raises:
        InvalidInputError: there are no messages and no tokenizer.
    """
    for episode in episodes_of(batch, tokenizer):
        paid = [turn.reward for turn in episode.turns]
        chat = {
            "messages": list(episode.messages),
            "tools": list(episode.tools),
            "task": episode.task,
            "group": episode.group,
            "reward": episode.reward,
            "success": episode.success,
            "step_rewards": paid if any(reward is not None for reward in paid) else None,
            **episode.extra,
        }
        yield {name: value for name, value in chat.items() if value not in (None, [])}
