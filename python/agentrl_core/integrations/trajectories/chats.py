"""Chats as OpenAI's API has them, a JSON object each: what fine-tuning data sets are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.episodes import Episode, batch_of, episodes_of, turns_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OWN = ("messages", "tools", "task", "group", "reward", "success", "step_rewards")


def from_chats(chats: Iterable[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Chats as a batch of imported trajectories, one draw each; every message of an assistant is an action.

    Token ids come from the tokenizer's chat template, tools and calls included, and there are no log-probs: such rows
    train at ratio 1. A template that changes what it said of earlier turns makes another context, as it would in use.

    Args:
        chats: `messages`, and where it has them `tools`, `task`, `group` (default: the task), `reward`, `success` and
            `step_rewards`, one number for each message of the assistant; other keys are kept in column `info`.
        tokenizer: with a chat template.

    Raises:
        InvalidInputError: a chat without messages, or without one of the assistant.
        UnsupportedError: contents that are no text.

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
    for place, chat in enumerate(chats):
        messages = chat.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
            raise InvalidInputError(f"chat {place} has no list 'messages' of objects with a role")
        turns = turns_of(messages, tokenizer, chat.get("tools") or ())
        paid = chat.get("step_rewards")
        if paid is not None:
            if len(paid) != len(turns):
                raise InvalidInputError(f"chat {place} has {len(paid)} step_rewards for {len(turns)} answers")
            turns = [replace(turn, reward=reward) for turn, reward in zip(turns, paid, strict=True)]
        task = str(chat.get("task", place))
        episodes.append(
            Episode(
                task=task,
                group=str(chat.get("group", task)),
                turns=turns,
                messages=messages,
                tools=chat.get("tools") or (),
                reward=chat.get("reward"),
                success=chat.get("success"),
                extra={name: value for name, value in chat.items() if name not in _OWN},
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
