"""Recognise the format of stored trajectories, and read them with its reader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from agentrl_core.exceptions import AgentRLError, InvalidInputError
from agentrl_core.integrations.trajectories.readers import (
    agent_lightning,
    claude_code,
    codex,
    inspect_logs,
    openhands,
    opentelemetry_calls,
    own_records,
    prompt_completion,
    sharegpt,
    slime,
    swe_agent,
    verl,
)
from agentrl_core.integrations.trajectories.readers.files import FileRecord, records_of
from agentrl_core.integrations.trajectories.readers.messages import HiddenReasoning

_FORMATS = {
    "agent_lightning": (agent_lightning.recognised, agent_lightning.chats),
    "chats": (own_records.is_chat, own_records.chats),
    "claude_code": (claude_code.recognised, claude_code.chats),
    "codex": (codex.recognised, codex.chats),
    "inspect": (inspect_logs.recognised, inspect_logs.chats),
    "openhands": (openhands.recognised, openhands.chats),
    "opentelemetry": (opentelemetry_calls.recognised, opentelemetry_calls.chats),
    "prompt_completion": (prompt_completion.recognised, prompt_completion.chats),
    "sharegpt": (sharegpt.recognised, sharegpt.chats),
    "slime": (slime.recognised, slime.chats),
    "swe_agent": (swe_agent.recognised, swe_agent.chats),
    "tokens": (own_records.is_tokens, own_records.token_rows),
    "verl": (verl.recognised, verl.chats),
}
_LOOKED_AT = 50  # a session may begin with lines that are valid in several formats


def read(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    format: str | None = None,  # noqa: A002 -- the usual name
    *,
    hidden_reasoning: HiddenReasoning = "refuse",
) -> Iterator[dict[str, Any]]:
    """Yield the trajectories of a file, a folder or rows in memory, as records that `from_chats` turns into a batch.

    Files are JSON, JSON lines (also gzip), Parquet, Inspect's `.eval` and slime's `.pt`; a folder is read as one
    session of the `.json` files in it. Formats:

    - `chats`: OpenAI's messages, as they are.
    - `sharegpt`: `conversations` of `from` and `value`, with `system` and `tools`.
    - `prompt_completion`: TRL's two texts, or two lists of messages; answers in the prompt are context.
    - `tokens`: `input_ids` with `labels` (-100) or a mask, or ids of prompt and completion; no template is used.
    - `claude_code`, `codex`, `openhands`, `swe_agent`: sessions of coding agents.
    - `opentelemetry`: calls of models in spans of the conventions for generative AI, joined to chats.
    - `agent_lightning`: its spans and events, with token ids and rewards.
    - `inspect`: a chat for each sample; its score is the reward, if there is one scorer.
    - `slime`, `verl`: dumps of rollouts. verl's hold neither special tokens nor masks: prompts are verified by
      rendering them again, and an end of turn is not trained.

    Only sampled answers are trained. Copied history, examples, answers of the program and answers cut by a limit have
    `weight` 0, and `untrained` has the reason. `left_out` lists contents that the model read but the file lacks, such
    as the system prompt of Claude Code, and entries that are not messages. Contents that a chat cannot represent are
    refused.

    If the history of a session was condensed or rewritten, there is a chat for each history that the model read, if the
    file has it; answers that are trained in an earlier chat are context. Forks of Codex, which repeat another session
    without a mark at their end, are refused.

    Chats of `inspect`, `openhands`, `slime` and `verl` have the original record in `record`, separate from the keys of
    chats, so that its fields, such as `success` or `group`, are not used. It lacks the data of the messages or turns
    (events and messages; `tokens`, `loss_mask`, `rollout_log_probs` and `rollout_routed_experts` of slime). The routed
    experts become column `routed_experts`, for `update.pack(replay_routes=True)`.

    Args:
        source: a file, a folder, or rows in memory.
        format: one of the above; None: detected from the first records.
        hidden_reasoning: treatment of an answer whose reasoning is encrypted or redacted. `refuse`: an error;
            `mask`: it is context; `omit`: it is trained without its reasoning, so not as it was sampled.

    Raises:
        InvalidInputError: the file or format does not exist, the format cannot be detected uniquely, or a record is
            invalid; the message names file and record.
        UnsupportedError: a chat cannot represent the contents: images, preferences, hidden reasoning, or a rewritten
            history that the file does not have.
        MissingDependencyError: a package that reads this kind of file is not installed.

    Example:
        >>> from agentrl_core.integrations.trajectories import read
        >>> rows = [{"conversations": [{"from": "human", "value": "2 + 2 ="}, {"from": "gpt", "value": "4"}]}]
        >>> list(read(rows))
        [{'messages': [{'role': 'user', 'content': '2 + 2 ='}, {'role': 'assistant', 'content': '4'}]}]
    """
    if format is not None and format not in _FORMATS:
        raise InvalidInputError(f"format: {format!r} is not known; give one of {', '.join(_FORMATS)}")
    if hidden_reasoning not in ("refuse", "mask", "omit"):
        raise InvalidInputError(f"hidden_reasoning: {hidden_reasoning!r} is not known; give 'refuse', 'mask' or 'omit'")
    file_records = records_of(source)
    opening = list(islice(file_records, _LOOKED_AT))
    name = format or _recognised([record.value for record in opening], source)
    last = opening[-1:]

    def followed() -> Iterator[FileRecord]:
        for record in chain(opening, file_records):
            last[:] = [record]
            yield record

    try:
        yield from _FORMATS[name][1](followed(), hidden_reasoning)
    except AgentRLError:
        raise
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        where = last[0].where if last else "the source"
        raise InvalidInputError(
            f"{where}, or a record before it, has a value of an unexpected type for format {name!r} "
            f"({type(error).__name__}: {error}); correct the value, or give another format"
        ) from error


def _recognised(values: list[Any], source: object) -> str:
    """Return the format of the first record that matches one; refuse a record that matches several."""
    origin = repr(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the rows"
    for value in values:
        names = [name for name, (recognised, _) in _FORMATS.items() if recognised(value)]
        if len(names) == 1:
            return names[0]
        if names:
            raise InvalidInputError(f"format: {origin} could be {' or '.join(names)}; give one of them")
    if not values:
        raise InvalidInputError(f"format: {origin} has no record; give at least one record, or the format")
    first = f"has the keys {', '.join(map(str, values[0]))}" if isinstance(values[0], Mapping) else f"is {values[0]!r}"
    raise InvalidInputError(
        f"format: {origin} is in no known format (the first record {first:.80}); give one of {', '.join(_FORMATS)}"
    )
