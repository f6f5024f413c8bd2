"""Episodes: what the formats of trajectories have in common, messages beside the turns that the policy sampled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.engine.chat_messages import is_text, is_trained, plain_message, plain_tools
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""A message of a chat as OpenAI's: `role`, `content`, and `tool_calls` or `tool_call_id` where it has any."""

Ids = Sequence[int] | NDArray[np.integer[Any]]
"""Token ids."""


@dataclass(frozen=True)
class TrajectoryTurn:
    """What the policy read and said once."""

    context: Ids
    """Token ids of all that it read."""
    action: Ids
    """Token ids of what it said."""
    logprobs: Sequence[float] | None = None
    """Their log-probs as sampled; None: nobody knows."""
    reward: float | None = None
    """What the turn was paid; None: nothing was said."""
    trained: bool = True
    """Whether its tokens are trained; else they are context alone."""


@dataclass(frozen=True)
class TrajectoryRecord:
    """One trajectory as its format has it."""

    task: str
    group: str
    turns: Sequence[TrajectoryTurn]
    messages: Sequence[Message] = ()
    tools: Sequence[Message] = ()
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def batch_of(episodes: Iterable[TrajectoryRecord], *, iteration: int = 0) -> Batch:
    """Episodes as a batch of imported trajectories, in the groups that they name.

    Messages, tools and what else the format says are kept as JSON in column `info` of the trajectories.

    Raises:
        InvalidInputError: an episode without turns, or values that no trajectory can have.
    """
    given = list(episodes)
    names = sorted({name for episode in given for name in episode.rewards})
    forest = Forest(iteration=iteration, reward_components=names or None)
    masked = any(not turn.trained for episode in given for turn in episode.turns)
    numbers: dict[str, int] = {}
    members: dict[str, int] = {}
    for place, episode in enumerate(given):
        if not episode.turns:
            raise InvalidInputError(f"episode {place} ({episode.task!r}) has no turn that the policy took")
        if episode.group not in numbers:
            numbers[episode.group] = len(numbers)
            forest.add_group(numbers[episode.group], episode.task)
        member = members[episode.group] = members.get(episode.group, -1) + 1
        trajectory = forest.start(numbers[episode.group], member, origin="imported")
        turns, unpaid = episode.turns, np.nan
        forest.ingest(
            [trajectory] * len(turns),
            [np.asarray(turn.context, np.int32) for turn in turns],
            [np.asarray(turn.action, np.int32) for turn in turns],
            logprobs=[np.asarray([] if turn.logprobs is None else turn.logprobs, np.float32) for turn in turns],
            reward=np.asarray([unpaid if turn.reward is None else turn.reward for turn in turns], np.float32),
            trainable=[np.full(len(turn.action), turn.trained) for turn in turns] if masked else None,
        )
        kept = {"messages": list(episode.messages), "tools": list(episode.tools), **episode.extra}
        forest.finish(
            trajectory,
            reward=episode.reward,
            rewards=[episode.rewards.get(name, np.nan) for name in names] or None,
            success=episode.success,
            info={name: value for name, value in kept.items() if value},
        )
    return forest.freeze()


def episodes_of(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> list[TrajectoryRecord]:
    """The draws of a batch as episodes.

    Messages are those that were imported. A batch that has none, since it was generated as tokens, is read with the
    tokenizer: the context of the first turn as one user's message, what follows an action as a tool's.

    Raises:
        InvalidInputError: no draw has messages, and there is no tokenizer.
    """
    contexts, of_tokens, of_steps = batch.contexts(), batch.offsets("token"), batch.offsets("step")
    tokens = np.asarray(batch.column("token", "token"))
    logprobs = np.asarray(batch.column("behaviour_logprob", "token"), np.float64)
    paid = np.asarray(batch.column("reward", "step"), np.float64)
    turns: list[TrajectoryTurn] = []
    for place in range(len(contexts.draws)):
        begin = int(contexts.offsets[place])
        for step in range(int(contexts.steps[place]), int(contexts.steps[place + 1])):
            own = slice(int(of_tokens[step]), int(of_tokens[step + 1]))
            known = np.isfinite(logprobs[own]).all()
            turns.append(
                TrajectoryTurn(
                    contexts.tokens[begin : begin + int(contexts.begins[step])].tolist(),
                    tokens[own].tolist(),
                    logprobs[own].tolist() if known else None,
                    float(paid[step]) if np.isfinite(paid[step]) else None,
                )
            )
    rows, groups = _rows(batch), batch.keys("group_id", "draw").tolist()
    parts = {name: batch.column(f"reward.{name}", "draw") for name in batch.reward_components or ()}
    found = []
    for draw, row in enumerate(rows):
        info = json.loads(row["info"] or "{}")
        own_turns = turns[int(of_steps[draw]) : int(of_steps[draw + 1])]
        messages = info.pop("messages", ()) or decoded(own_turns, tokenizer)
        found.append(
            TrajectoryRecord(
                task=row["task_id"],
                group=f"{row['task_id']}/{groups[draw]}",
                turns=own_turns,
                messages=messages,
                tools=info.pop("tools", ()),
                reward=row["reward"],
                rewards={name: float(values[draw]) for name, values in parts.items() if np.isfinite(values[draw])},
                success=None if row["success"] is None else bool(row["success"]),
                extra=info,
            )
        )
    return found


def turns_of(
    messages: Sequence[Message], template: ChatTemplate | None, tools: object = (), *, chat: str = "chat"
) -> list[TrajectoryTurn]:
    """Return the turns of a chat whose text alone is known, as a chat template renders them; without log-probs.

    Args:
        messages: the chat.
        template: of the tokenizer.
        tools: JSON schemas of the tools, as a list or as JSON text.
        chat: how errors name the chat.

    Raises:
        InvalidInputError: no template, or a message of another shape.
        UnsupportedError: the template cannot render the chat, or leaves something out; see `ChatTemplate.answers`.
    """
    if template is None:
        raise InvalidInputError("there are no token ids; give tokenizer=, whose chat template says them (no log-probs)")
    trained = [is_trained(message, f"{chat}, message {place}") for place, message in enumerate(messages)]
    plain = [plain_message(message, f"{chat}, message {place}") for place, message in enumerate(messages)]
    for place, message in enumerate(plain):
        if not is_text(message["content"]):
            raise UnsupportedError(f"{chat}, message {place}: it has an image, and trajectories here hold texts alone")
    found = template.answers(plain, plain_tools(tools, chat), chat=chat)
    return [TrajectoryTurn(each.context, each.action, trained=trained[each.message]) for each in found]


def decoded(turns: Sequence[TrajectoryTurn], tokenizer: PreTrainedTokenizerBase | None) -> list[Message]:
    """The messages of turns of which only the tokens are known; roles inside a context are not told apart."""
    if tokenizer is None:
        raise InvalidInputError("the batch has tokens and no messages; give tokenizer=, which reads them")
    messages: list[Message] = []
    seen = 0
    for turn in turns:
        role = "tool" if messages else "user"
        messages.append({"role": role, "content": _text(tokenizer, turn.context[seen:])})
        messages.append({"role": "assistant", "content": _text(tokenizer, turn.action)})
        seen = len(turn.context) + len(turn.action)
    return messages


def linear(batch: Batch, format_name: str) -> None:
    """Refuse draws with several contexts, which a format of one chain of messages cannot carry."""
    contexts = np.bincount(batch.contexts().draws, minlength=batch.num_draws)
    if (contexts > 1).any():
        draw = int(np.flatnonzero(contexts > 1)[0])
        raise UnsupportedError(
            f"draw {draw} has {contexts[draw]} contexts (its history was rewritten), and {format_name} holds one chain "
            "of messages; leave it out (batch.select_draws), or keep it as a store"
        )


def arguments(given: Any) -> Any:
    """The arguments of a call as a table; text that is no JSON stays text."""
    if not isinstance(given, str):
        return given if given is not None else {}
    try:
        return json.loads(given)
    except json.JSONDecodeError:
        return given


def _text(tokenizer: Any, tokens: Ids) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _rows(batch: Batch) -> list[dict[str, Any]]:
    """What the trajectory of each draw was, and what was kept of it."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependencyError(
            "exporting trajectories needs the package polars: pip install 'agentrl-core[polars]'"
        ) from error
    columns = ["trajectory_id", "task_id", "reward", "success", "info"]
    drawn = pl.DataFrame(batch.draws).select("trajectory_id")
    known = pl.DataFrame(batch.trajectories).select(columns)
    return drawn.join(known, on="trajectory_id", how="left", maintain_order="left").to_dicts()
