"""Records of trajectories, common to all formats: messages, and the turns that the policy sampled."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.wrong_values import first_wrong, shown
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.sampling_record import tokens_with_images
from agentrl_core.data.table_codes import ROUTED_EXPERTS
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.chat_messages import is_trained, plain_message, plain_tools
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.env.image import Image, images_in
from agentrl_core.env.message_images import is_image_part, with_images
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError
from agentrl_core.integrations.trajectories.image_blobs import names_blobs, with_bytes, with_hashes
from agentrl_core.integrations.trajectories.original_record import kept, kept_in, messages_and_tools, names_of
from agentrl_core.operators.columns import doubles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""A message in OpenAI's format: `role`, `content`, and optionally `tool_calls` or `tool_call_id`."""

Ids = Sequence[int] | NDArray[np.integer[Any]]
"""Token ids."""


@dataclass(frozen=True)
class TrajectoryTurn:
    """One turn of the policy: the tokens that it read and generated."""

    context: Ids
    """Token ids that the policy read."""
    action: Ids
    """Token ids that the policy generated."""
    logprobs: Sequence[float] | None = None
    """Log-probs of the generated tokens; None: unknown."""
    reward: float | None = None
    """Reward of the turn; None: unknown."""
    trained: bool = True
    """Whether the generated tokens are trained; otherwise they are context."""
    images: Sequence[Image] = ()
    """Images in the context, in order."""
    routed_experts: NDArray[np.uint8] | NDArray[np.uint16] | None = None
    """Experts of the turn's tokens from the start of the context, one row each; None: not recorded."""


@dataclass(frozen=True)
class TrajectoryRecord:
    """One trajectory, as read from any format."""

    task: str
    group: str
    turns: Sequence[TrajectoryTurn]
    messages: Sequence[Message] = ()
    tools: Sequence[Message] = ()
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """Name of the trajectory in errors, such as `chat 3`."""
    format_name: str = ""
    """The format that it was imported from; empty if it was not imported, or by an earlier version."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The original record, if the format keeps it; see `imported`."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return task, group, reward and success."""
        return {"task": self.task, "group": self.group, "reward": self.reward, "success": self.success}


@contextmanager
def named(where: str) -> Iterator[None]:
    """Add the name of a record to each `InvalidInputError` raised inside the block, unless it has the name."""
    try:
        yield
    except InvalidInputError as error:
        if str(error).startswith(where) or f" of {where}" in str(error):
            raise
        raise InvalidInputError(f"{where}: {error}") from error


def batch_of(episodes: Iterable[TrajectoryRecord], *, iteration: int = 0) -> Batch:
    """Return trajectory records as a batch of imported trajectories, in the groups that they name.

    Column `info` of a trajectory stores the original record as JSON, or without one the messages, tools and other
    fields. Records with the same task and group name form a group. The draws have the order of the records.

    Raises:
        InvalidInputError: a record has no turns, or invalid values.
    """
    records = list(episodes)
    names = sorted({name for episode in records for name in episode.rewards})
    forest = Forest(iteration=iteration, reward_components=names or None)
    masked = any(not turn.trained for episode in records for turn in episode.turns)
    numbers: dict[tuple[str, str], int] = {}
    members: dict[int, int] = {}
    placed: list[int] = []
    for place, episode in enumerate(records):
        if not episode.turns:
            name = episode.name or f"episode {place}"
            raise InvalidInputError(
                f"{name} (task {episode.task!r}) has no turn that the policy took; leave the record out"
            )
        number = numbers.setdefault((episode.task, episode.group), len(numbers))
        with named(episode.name or f"episode {place}"):
            if number not in members:
                forest.add_group(number, episode.task)
            member = members[number] = members.get(number, -1) + 1
            _add(forest, forest.start(number, member, origin="imported"), episode, names, masked=masked)
            placed.append(number)
    # A forest freezes group by group; the draws are put into the order of the records.
    frozen = np.argsort(placed, kind="stable")
    batch = forest.freeze()
    return batch if (np.diff(frozen) == 1).all() else batch.select_draws(np.argsort(frozen))


def _add(forest: Forest, trajectory: int, episode: TrajectoryRecord, names: Sequence[str], *, masked: bool) -> None:
    """Append the turns of a record to a trajectory of a forest, and finish it."""
    if episode.success not in (None, False, True):
        raise InvalidInputError(f"success is {shown(episode.success)}; give true or false, or null if it is not known")
    turns = episode.turns
    step_rewards = [as_number(turn.reward, f"reward of turn {place}") for place, turn in enumerate(turns)]
    contexts = [_tokens(turn.context, f"the context of turn {place}") for place, turn in enumerate(turns)]
    actions = [_tokens(turn.action, f"the action of turn {place}") for place, turn in enumerate(turns)]
    logprobs = [_logprobs(turn, place) for place, turn in enumerate(turns)]
    trainable = [np.full(len(turn.action), turn.trained) for turn in turns] if masked else None
    experts = [None if turn.routed_experts is None else (0, turn.routed_experts) for turn in turns]
    blobs = {image.sha256: image.content for turn in turns for image in turn.images}
    for content in blobs.values():
        forest.add_blob(content)
    forest.ingest(
        [trajectory] * len(turns),
        contexts,
        actions,
        logprobs=logprobs,
        reward=np.asarray(step_rewards, np.float32),
        trainable=trainable,
        images=[[image.sha256 for image in turn.images] for turn in turns] if blobs else None,
        columns={ROUTED_EXPERTS: experts} if any(experts) else None,
    )
    if episode.format_name:
        info = kept(episode.format_name, episode.record)
    else:
        shared = {"messages": list(episode.messages), "tools": list(episode.tools)}
        info = {name: value for name, value in shared.items() if value} | dict(episode.extra)
    info = with_hashes(info, blobs) if blobs else info
    forest.finish(
        trajectory,
        reward=as_number(episode.reward, "reward"),
        rewards=[as_number(episode.rewards.get(name), f"reward {name!r}") for name in names] or None,
        success=None if episode.success is None else bool(episode.success),
        info=info,
    )


def _tokens(tokens: Ids, name: str) -> NDArray[np.int32]:
    """Return token ids as an array, and refuse numbers that are not integers."""
    try:
        ids = np.asarray(tokens if len(tokens) else np.empty(0, np.int32))
    except ValueError:  # lists of several lengths
        ids = np.empty(0)
    is_integer = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not is_integer or (len(ids) and not 0 <= ids.min() <= ids.max() <= np.iinfo(np.int32).max):
        odd = first_wrong(tokens, _is_id)
        found = f" is {shown(tokens)}" if odd is None else f"[{odd}] is {shown(tokens[odd])}"
        raise InvalidInputError(f"{name}: tokens{found}; give whole numbers from 0 to 2147483647")
    return ids.astype(np.int32)


def _is_id(value: object) -> bool:
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and 0 <= int(value) <= np.iinfo(np.int32).max
    )


def _logprobs(turn: TrajectoryTurn, place: int) -> NDArray[np.float32]:
    """Return the log-probs of a turn as an array; finite numbers that would overflow float32 are refused."""
    values = np.zeros(0) if turn.logprobs is None else doubles(turn.logprobs, f"turn {place}: logprobs")
    largest = np.finfo(np.float32).max
    if (np.isfinite(values) & (np.abs(values) > largest)).any():
        odd = int(np.flatnonzero(np.isfinite(values) & (np.abs(values) > largest))[0])
        raise InvalidInputError(
            f"turn {place}: logprobs[{odd}] is {values[odd]:.3g}, which does not fit 32 bits; "
            "give the log-probs with which the tokens were sampled"
        )
    return values.astype(np.float32)


def as_number(given: object, name: str) -> float:
    """Return a reward as a number; NaN if it is unknown.

    Raises:
        InvalidInputError: the reward is not a number, or exceeds the largest float.
    """
    if given is None:
        return float("nan")
    if not isinstance(given, Real):
        raise InvalidInputError(f"{name} is {shown(given)}; give a number, or null if it is not known")
    try:
        return float(given)
    except OverflowError:
        raise InvalidInputError(
            f"{name} is beyond the range of a float; give a number up to 1.8e308, or null"
        ) from None


def episodes_of(batch: Batch, tokenizer: PreTrainedTokenizerBase | None = None) -> list[TrajectoryRecord]:
    """Return the draws of a batch as trajectory records.

    Messages are the imported ones. If a batch was generated as tokens and has no messages, the tokenizer decodes it:
    the context of the first turn becomes a user's message, the tokens after an action a tool's message.

    Raises:
        InvalidInputError: no draw has messages, and there is no tokenizer.
    """
    contexts, of_tokens, of_steps = batch.contexts(), batch.offsets("token"), batch.offsets("step")
    tokens = np.asarray(batch.column("token", "token"))
    logprobs = np.asarray(batch.column("behaviour_logprob", "token"), np.float64)
    step_rewards = np.asarray(batch.column("reward", "step"), np.float64)
    mask = np.asarray(batch.column("trainable", "token"), bool) if batch.has("trainable", "token") else None
    turns: list[TrajectoryTurn] = []
    for place in range(len(contexts.draws)):
        begin = int(contexts.offsets[place])
        for step in range(int(contexts.steps[place]), int(contexts.steps[place + 1])):
            span = slice(int(of_tokens[step]), int(of_tokens[step + 1]))
            known = np.isfinite(logprobs[span]).all()
            turns.append(
                TrajectoryTurn(
                    contexts.tokens[begin : begin + max(int(contexts.begins[step]), 0)].tolist(),
                    tokens[span].tolist(),
                    logprobs[span].tolist() if known else None,
                    _shortest(step_rewards[step]) if np.isfinite(step_rewards[step]) else None,
                    mask is None or bool(mask[span].any()),
                )
            )
    rows, groups = _rows(batch), batch.keys("group_id", "draw").tolist()
    parts = {name: batch.column(f"reward.{name}", "draw") for name in batch.reward_components or ()}
    records = []
    infos = [json.loads(row["info"] or "{}") for row in rows]
    for place, row in enumerate(rows):
        if names_blobs(row["info"] or ""):
            infos[place] = with_bytes(infos[place], batch.blob)
    shows = tokens_with_images(batch)
    group_names = _group_names(rows, infos, groups)
    for draw, (row, info) in enumerate(zip(rows, infos, strict=True)):
        own_turns = turns[int(of_steps[draw]) : int(of_steps[draw + 1])]
        format_name, record = kept_in(info)
        messages, tools = messages_and_tools(format_name, record) if format_name else (info.pop("messages", ()), ())
        records.append(
            TrajectoryRecord(
                task=row["task_id"],
                group=group_names[draw],
                turns=own_turns,
                messages=messages or _read(draw, own_turns, tokenizer, shows, of_tokens[of_steps[draw : draw + 2]]),
                tools=tools or info.pop("tools", ()),
                reward=None if row["reward"] is None else _shortest(row["reward"]),
                rewards={name: _shortest(values[draw]) for name, values in parts.items() if np.isfinite(values[draw])},
                success=None if row["success"] is None else bool(row["success"]),
                extra={} if format_name else info,
                format_name=format_name,
                record=record,
            )
        )
    return records


def _shortest(stored: float) -> float:
    """Return the shortest decimal number with the same float32 value, such as 0.1."""
    return float(str(np.float32(stored)))


def _group_names(
    rows: Sequence[Mapping[str, Any]], infos: Sequence[Mapping[str, Any]], groups: Sequence[int]
) -> list[str]:
    """Return the name of each draw's group, as imported unless two groups of a task have the same name."""
    names: list[tuple[str, str]] = []
    imported: list[bool] = []
    for row, info in zip(rows, infos, strict=True):
        format_name, record = kept_in(info)
        group_name = names_of(format_name, record)[1] if format_name else None
        names.append((row["task_id"], row["task_id"] if group_name is None else group_name))
        imported.append(bool(format_name))
    numbers: dict[tuple[str, str], set[int]] = {}
    for pair, group in zip(names, groups, strict=True):
        numbers.setdefault(pair, set()).add(group)
    return [
        pair[1] if known and len(numbers[pair]) == 1 else f"{pair[1]}/{group}"
        for pair, known, group in zip(names, imported, groups, strict=True)
    ]


def turns_of(
    messages: Sequence[Message],
    template: ChatTemplate | Chat | None,
    tools: object = (),
    *,
    chat: str = "chat",
    sampled: Collection[int] | None = None,
) -> list[TrajectoryTurn]:
    """Return the turns of a chat without tokens, rendered by a chat template; without log-probs.

    Args:
        messages: the chat.
        template: template of the tokenizer; see `template_of`.
        tools: JSON schemas of the tools, as a list or as JSON text.
        chat: name of the chat in errors.
        sampled: indices of the answers that a model sampled; others are only context. None: all.

    Raises:
        InvalidInputError: there is no template, or a message has an invalid form.
        UnsupportedError: the template cannot render the chat, or leaves out a part; see `ChatTemplate.answers`.
    """
    if template is None:
        raise InvalidInputError(
            f"{chat}: there are no token ids; give tokenizer=, whose chat template makes them (log-probs stay unknown)"
        )
    trained = [is_trained(message, f"{chat}, message {place}") for place, message in enumerate(messages)]
    schemas = plain_tools(tools, chat)
    image_messages: list[dict[str, Any]] = []
    if isinstance(template, Chat):
        image_messages = with_images(messages, f"{chat}: messages")
        answers = template.answers(image_messages, schemas, chat=chat)
    else:
        plain = [plain_message(message, f"{chat}, message {place}") for place, message in enumerate(messages)]
        answers = template.answers(plain, schemas, chat=chat)
    return [
        TrajectoryTurn(
            each.context, each.action, trained=trained[each.message], images=images_in(image_messages[: each.message])
        )
        for each in answers
        if sampled is None or each.message in sampled
    ]


def has_images(messages: Iterable[Message]) -> bool:
    """Return whether a message has an image part."""
    contents = (message.get("content") for message in messages)
    return any(isinstance(content, (list, tuple)) and any(map(is_image_part, content)) for content in contents)


def tokenizer_of(given: Any) -> Any:
    """Return the tokenizer of a processor, or a tokenizer unchanged."""
    return given.tokenizer if hasattr(given, "image_processor") else given


def template_of(tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None, *, images: bool) -> ChatTemplate | Chat:
    """Return the renderer of chats, with or without images, for a tokenizer or a processor."""
    if images:
        return Chat(tokenizer, chat_template_kwargs)
    inner = tokenizer_of(tokenizer)
    template = None if inner is tokenizer else tokenizer.chat_template
    return ChatTemplate(inner, template, chat_template_kwargs)


def _read(
    draw: int,
    turns: Sequence[TrajectoryTurn],
    tokenizer: PreTrainedTokenizerBase | None,
    shows: NDArray[np.bool_] | None,
    tokens: NDArray[np.int64],
) -> list[Message]:
    """Decode the messages of a draw that was imported without any; `tokens` are begin and end of its tokens."""
    if shows is not None and shows[int(tokens[0]) : int(tokens[-1])].any():
        raise UnsupportedError(
            f"draw {draw} has images and no imported messages, and its tokens do not mark where the images are; leave "
            "the draw out (batch.select_draws), or save the batch in a store"
        )
    return decoded(draw, turns, tokenizer)


def decoded(draw: int, turns: Sequence[TrajectoryTurn], tokenizer: PreTrainedTokenizerBase | None) -> list[Message]:
    """Return decoded messages for turns of tokens; roles within a context are not distinguished."""
    if tokenizer is None:
        raise InvalidInputError(f"draw {draw} has tokens but no messages; give tokenizer=, which decodes the tokens")
    messages: list[Message] = []
    decoded_count = 0
    before: list[int] = []
    for place, turn in enumerate(turns):
        if list(turn.context[:decoded_count]) != before:
            raise UnsupportedError(
                f"draw {draw}: the context of turn {place} does not begin with turn {place - 1} (the history was "
                "rewritten), but a chat has one history; leave the draw out (batch.select_draws), or save the batch in "
                "a store"
            )
        role = "tool" if messages else "user"
        messages.append({"role": role, "content": _text(tokenizer, turn.context[decoded_count:])})
        messages.append({"role": "assistant", "content": _text(tokenizer, turn.action)})
        before = [*turn.context, *turn.action]
        decoded_count = len(before)
    return messages


def linear(batch: Batch, episodes: Sequence[TrajectoryRecord], format_name: str, holds: Collection[str]) -> None:
    """Refuse draws with several contexts for a format of one chain of messages, unless imported in a format of `holds`.

    Args:
        batch: the batch.
        episodes: the records of its draws.
        format_name: name of the format in errors.
        holds: the formats whose imported records can have several contexts.
    """
    contexts = np.bincount(batch.contexts().draws, minlength=batch.num_draws)
    for draw, episode in enumerate(episodes):
        if contexts[draw] > 1 and episode.format_name not in holds:
            raise UnsupportedError(
                f"draw {draw} has {contexts[draw]} contexts (its history was rewritten), but {format_name} has one "
                "list of messages for each draw; leave the draw out (batch.select_draws), or save the batch in a store"
            )


def _text(tokenizer: Any, tokens: Ids) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _rows(batch: Batch) -> list[dict[str, Any]]:
    """Return for each draw the row of its trajectory, with its `info`."""
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependencyError(
            "exporting trajectories needs the package polars: pip install 'agentrl-core[polars]'"
        ) from error
    columns = ["trajectory_id", "task_id", "reward", "success", "info"]
    ids = pl.DataFrame(batch.draws).select("trajectory_id")
    known = pl.DataFrame(batch.trajectories).select(columns)
    return ids.join(known, on="trajectory_id", how="left", maintain_order="left").to_dicts()
