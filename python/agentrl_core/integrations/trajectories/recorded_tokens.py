"""Turns from the tokens of a record: token ids with labels or masks, prompts with completions, and plain texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.wrong_values import first_wrong, is_number, shown
from agentrl_core.data.table_codes import ROUTED_EXPERTS
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.trajectory_record import TrajectoryTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROMPTS = ("prompt_token_ids", "prompt_ids")
_COMPLETIONS = ("completion_token_ids", "completion_ids", "response_token_ids")
_MASKS = ("completion_mask", "assistant_masks", "assistant_mask", "loss_mask", "response_mask")
_LOGPROBS = ("logprobs", "completion_logprobs")
_LABELS, _ROW, _TURNS, _PADDING, _POSITIONS = "labels", "input_ids", "turns", "attention_mask", "position_ids"
_IGNORED = -100
_LARGEST = np.iinfo(np.int32).max
AFTER = "tokens_after"
"""The key of the tokens after the last trained one, which are in no turn."""

TOKEN_KEYS = frozenset(
    (*_PROMPTS, *_COMPLETIONS, *_MASKS, *_LOGPROBS, _LABELS, _ROW, _TURNS, _PADDING, _POSITIONS, "prompt", "completion")
)
"""The keys of a record that are read here."""


def has_tokens(record: Mapping[str, Any]) -> bool:
    """Return whether a record has token ids."""
    return (
        record.get(_ROW) is not None
        or isinstance(record.get(_TURNS), list)
        or (_first(record, _PROMPTS) is not None and _first(record, _COMPLETIONS) is not None)
    )


def recorded_turns(
    record: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None, where: str
) -> tuple[list[TrajectoryTurn], list[int]] | None:
    """Return the turns of a record with token ids or two texts, and the tokens after the last turn; None for a chat.

    - `input_ids` with `labels` (-100: not trained), or with one of `completion_mask`, `assistant_masks`, `loss_mask`,
      `response_mask`: every run of trained tokens is a turn. A mask that is shorter covers the last tokens. Tokens with
      `attention_mask` 0 are padding. `logprobs` are those of the trained tokens, or one for each token.
    - `prompt_token_ids` (`prompt_ids`) and `completion_token_ids` (`completion_ids`, `response_token_ids`), with
      `logprobs` and a mask of the completion. `routed_experts` has the experts of the tokens of both, `[tokens, layers,
      k]`, of all but the last one at least.
    - `turns`: a list of such prompts and completions, each with a `reward` and a `weight` (0: not trained).
    - `prompt` and `completion` as texts: each is tokenised alone, and the end-of-sequence token is added to the
      completion, as TRL does. No chat template is used. A record with `messages` is a chat of these.

    Raises:
        InvalidInputError: ids, masks, labels or log-probs do not match, no token is trained, or there are texts without
            a tokenizer.
        UnsupportedError: sequences are packed, or weights are between 0 and 1.
    """
    if isinstance(record.get(_TURNS), list):
        turns = []
        remedy = "give this entry of turns the weight 0"
        for number, turn in enumerate(record[_TURNS]):
            place = f"{where}, turn {number}"
            if not isinstance(turn, Mapping) or not has_tokens(turn):
                known = turn if isinstance(turn, Mapping) else {}
                missing = [names[0] for names in (_PROMPTS, _COMPLETIONS) if _first(known, names) is None]
                raise InvalidInputError(f"{place} has no {' and no '.join(missing)}; give both lists of token ids")
            trained = turn.get("weight") is None or bool(_zero_or_one([turn["weight"]], place, "weight")[0])
            reward = turn.get("reward")
            if reward is not None and not isinstance(reward, (int, float)):
                raise InvalidInputError(f"{place}: reward is {shown(reward)}; give a number")
            pair_turns = [replace(each, trained=trained) for each in _pair(turn, place, trained=trained, remedy=remedy)]
            turns += [*pair_turns[:-1], replace(pair_turns[-1], reward=reward)]
        if not turns:
            raise InvalidInputError(f"{where}: turns is empty; leave the record out")
        return turns, []
    if record.get(_ROW) is not None:
        return _row(record, where)
    if has_tokens(record):
        return _pair(record, where, trained=True), []
    texts = isinstance(record.get("prompt"), str) and isinstance(record.get("completion"), str)
    if texts and not record.get("messages"):  # besides messages, such fields have no meaning here
        return [_text(record["prompt"], record["completion"], tokenizer, where)], []
    return None


def _row(record: Mapping[str, Any], where: str) -> tuple[list[TrajectoryTurn], list[int]]:
    ids = _ids(record[_ROW], f"{where}: {_ROW}")
    positions = record.get(_POSITIONS)
    places = None if positions is None else _array(positions, f"{where}: {_POSITIONS}").ravel()
    if places is not None and (np.diff(places) < 0).any():
        fall = int(np.flatnonzero(np.diff(places) < 0)[0])
        raise UnsupportedError(
            f"{where}: {_POSITIONS}[{fall + 1}] is {places[fall + 1]} after {places[fall]}, as in packed sequences; "
            f"give each sequence in a record of its own, or leave {_POSITIONS} out if the record has one sequence"
        )
    trained = _trained(record, ids, where)
    real = np.ones(len(ids), bool)
    if record.get(_PADDING) is not None:
        real = _zero_or_one(record[_PADDING], where, _PADDING, len(ids))
        if (trained & ~real).any():
            raise InvalidInputError(
                f"{where}: {_PADDING}[{int(np.flatnonzero(trained & ~real)[0])}] is 0 (padding), but this token is "
                f"trained; correct {_PADDING}, or the labels or mask of trained tokens"
            )
    logprobs = _first(record, _LOGPROBS)
    values = None if logprobs is None else _logprobs(logprobs, trained, where)
    ids, trained = ids[real], trained[real]
    turns = _runs(ids, trained, None if values is None else values[real], where)
    last = int(np.flatnonzero(trained)[-1]) + 1
    return turns, ids[last:].tolist()


def _trained(record: Mapping[str, Any], ids: NDArray[np.int32], where: str) -> NDArray[np.bool_]:
    """Return a mask of the trained tokens of a row, from its labels and masks, which must agree."""
    masks: dict[str, NDArray[np.bool_]] = {}
    if record.get(_LABELS) is not None:
        labels = _array(record[_LABELS], f"{where}: {_LABELS}")
        if labels.shape != ids.shape:
            raise InvalidInputError(
                f"{where}: labels has shape {labels.shape}, but input_ids has {ids.shape}; give one label for each id"
            )
        masks[_LABELS] = labels != _IGNORED
        if (labels != ids)[masks[_LABELS]].any():
            shifted = masks[_LABELS][:-1] & (labels[:-1] == ids[1:])
            reason = " (labels is shifted by one)" if shifted.sum() >= masks[_LABELS].sum() - 1 else ""
            odd = int(np.flatnonzero(masks[_LABELS] & (labels != ids))[0])
            raise InvalidInputError(
                f"{where}: labels[{odd}] is {labels[odd]}, but input_ids[{odd}] is {ids[odd]}{reason}; give the ids "
                "themselves, or -100"
            )
    for name in _MASKS:
        if record.get(name) is not None:
            mask = _zero_or_one(record[name], where, name)
            if len(mask) > len(ids) or (len(mask) < len(ids) and record.get(_PADDING) is not None):
                raise InvalidInputError(
                    f"{where}: {name} has {len(mask)} values for {len(ids)} input_ids; give one for each"
                )
            masks[name] = np.concatenate([np.zeros(len(ids) - len(mask), bool), mask])
    if not masks:
        raise InvalidInputError(
            f"{where} has input_ids, but no {_LABELS} and no mask ({', '.join(_MASKS)}); give one of them"
        )
    (name, trained), *others = masks.items()
    for other, mask in others:
        if (mask != trained).any():
            odd = int(np.flatnonzero(mask != trained)[0])
            one, two = (name, other) if trained[odd] else (other, name)
            raise InvalidInputError(f"{where}: {one} trains token {odd}, but {two} does not; leave one of them out")
    if not trained.any():
        raise InvalidInputError(f"{where}: {name} trains no token; leave the record out")
    if trained[0]:
        raise InvalidInputError(f"{where}: {name} trains the first token, which has no context; mask the prompt")
    return trained


def _pair(
    record: Mapping[str, Any], where: str, *, trained: bool, remedy: str = "leave the record out"
) -> list[TrajectoryTurn]:
    """Return the turns of a prompt and a completion; an error for a mask of zeros alone ends with `remedy`."""
    prompt = _ids(_first(record, _PROMPTS), f"{where}: {_name(record, _PROMPTS)}")
    completion = _ids(_first(record, _COMPLETIONS), f"{where}: {_name(record, _COMPLETIONS)}")
    if not len(prompt) or not len(completion):
        raise InvalidInputError(
            f"{where} has {len(prompt)} prompt tokens and {len(completion)} completion tokens; give at least one of "
            "each"
        )
    name = next((name for name in _MASKS if record.get(name) is not None), None)
    mask = np.ones(len(completion), bool)
    if name is not None and trained:  # an untrained completion is context as a whole
        mask = _zero_or_one(record[name], where, name, len(completion))
        if not mask.any():
            raise InvalidInputError(f"{where}: {name} trains no token; {remedy}")
    logprobs = _first(record, _LOGPROBS)
    values = None if logprobs is None else _logprobs(logprobs, mask, where)
    ids, chosen = np.concatenate([prompt, completion]), np.concatenate([np.zeros(len(prompt), bool), mask])
    if values is not None:
        values = np.concatenate([np.zeros(len(prompt)), values])
    turns = _runs(ids, chosen, values, where)
    if record.get(ROUTED_EXPERTS) is not None:
        length = len(turns[-1].context) + len(turns[-1].action)
        turns[-1] = replace(turns[-1], routed_experts=_experts(record[ROUTED_EXPERTS], len(ids), where)[:length])
    return turns


def _runs(
    ids: NDArray[np.int32], trained: NDArray[np.bool_], logprobs: NDArray[np.float64] | None, where: str
) -> list[TrajectoryTurn]:
    """Return a turn for each run of trained tokens, with all earlier tokens as its context."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], trained, [False]]).astype(np.int8)))
    turns = []
    for begin, end in list(pairwise(edges.tolist()))[::2]:
        values = None if logprobs is None else logprobs[begin:end].tolist()
        if values is not None and not np.isfinite(values).all():
            odd = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InvalidInputError(
                f"{where}: the log-prob of trained token {int(trained[:begin].sum()) + odd} (counted from 0) is "
                f"{values[odd]}; give a finite number, or leave logprobs out"
            )
        turns.append(TrajectoryTurn(ids[:begin], ids[begin:end], values))
    return turns


def _text(prompt: str, completion: str, tokenizer: Any, where: str) -> TrajectoryTurn:
    if tokenizer is None:
        raise InvalidInputError(f"{where} has texts and no token ids; give tokenizer=, which converts them to ids")
    end = tokenizer.eos_token_id
    context = list(tokenizer(prompt)["input_ids"])
    if context and context[-1] == end and not prompt.endswith(tokenizer.eos_token):
        context.pop()
    action = list(tokenizer(completion, add_special_tokens=False)["input_ids"])
    if end is not None and action[-1:] != [end]:
        action.append(end)
    if not context:
        raise InvalidInputError(f"{where}: prompt is {prompt!r:.40}, which has no token; give a text of at least one")
    return TrajectoryTurn(context, action)


def _array(values: Any, where: str, *, nested: bool = False) -> NDArray[Any]:
    """Return a row, or nested rows, of numbers as an array."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        problem = f"{where} has lists of different lengths or depths" if nested else _odd(values, where)
        raise InvalidInputError(f"{problem}; give {'lists of equal lengths' if nested else 'numbers'}") from error
    if array.size and array.dtype.kind not in "iufb":
        raise InvalidInputError(f"{_odd(values, where)}; give numbers (whole numbers, except for log-probs)")
    return array


def _odd(values: Any, where: str) -> str:
    """Return the name and value of the first entry that is not a number, or of all entries."""
    entries = values if isinstance(values, (list, tuple)) and len(values) > 1 else ()
    odd = first_wrong(entries, is_number)
    return f"{where} is {shown(values)}" if odd is None else f"{where}[{odd}] is {shown(entries[odd])}"


def _ids(values: Any, where: str) -> NDArray[np.int32]:
    ids = _array(values, where)
    if ids.ndim == 1 and ids.size == 0:
        return np.empty(0, np.int32)
    if ids.ndim != 1:
        raise InvalidInputError(
            f"{where} has {ids.ndim} dimensions; give a one-dimensional array of ids for each record"
        )
    if ids.dtype.kind not in "iu":
        odd = first_wrong(values, lambda value: is_number(value, "iu")) or 0
        raise InvalidInputError(f"{where}[{odd}] is {shown(values[odd])}; give a whole number")
    if ids.min() < 0 or ids.max() > _LARGEST:
        odd = int(np.flatnonzero((ids < 0) | (ids > _LARGEST))[0])
        raise InvalidInputError(f"{where}[{odd}] is {ids[odd]}; give ids from 0 to {_LARGEST}")
    return ids.astype(np.int32)


def _zero_or_one(values: Any, where: str, name: str, length: int | None = None) -> NDArray[np.bool_]:
    mask = _array(values, f"{where}: {name}")
    if mask.ndim != 1 or mask.dtype.kind not in "iufb":
        raise InvalidInputError(f"{where}: {name} has shape {mask.shape}; give a 0 or 1 for each token")
    if length is not None and len(mask) != length:
        raise InvalidInputError(f"{where}: {name} has {len(mask)} values for {length} tokens; give one for each")
    if not np.isin(mask, (0, 1)).all():
        odd = int(np.flatnonzero(~np.isin(mask, (0, 1)))[0])
        place = f"{name}[{odd}]" if len(mask) > 1 else name
        raise UnsupportedError(f"{where}: {place} is {mask[odd]}; give 0 (not trained) or 1 (trained)")
    return mask.astype(bool)


def _logprobs(given: Any, trained: NDArray[np.bool_], where: str) -> NDArray[np.float64]:
    """Return log-probs for all tokens, from those of all or only the trained tokens."""
    values = _array(given, f"{where}: logprobs").astype(np.float64)
    if values.shape == trained.shape:
        return values
    if values.ndim == 1 and len(values) == trained.sum():
        spread = np.zeros(len(trained))
        spread[trained] = values
        return spread
    raise InvalidInputError(
        f"{where}: logprobs has shape {values.shape} for {len(trained)} tokens, {int(trained.sum())} of them trained; "
        "give a list with one log-prob for each token, or one for each trained token"
    )


def _experts(values: Any, tokens: int, where: str) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Return the experts of tokens, one row each, from the first token on."""
    experts = _array(values, f"{where}: {ROUTED_EXPERTS}", nested=True)
    if experts.ndim not in (2, 3) or not tokens - 1 <= len(experts) <= tokens or not experts[:1].size:
        raise InvalidInputError(
            f"{where}: {ROUTED_EXPERTS} has shape {experts.shape} for {tokens} tokens; give the shape "
            "[tokens, layers, experts per token], where only the last token can be left out"
        )
    if experts.dtype.kind not in "iu" or experts.min() < 0 or experts.max() > np.iinfo(np.uint16).max:
        raise InvalidInputError(
            f"{where}: {ROUTED_EXPERTS} has dtype {experts.dtype} and values from {experts.min()} to {experts.max()}; "
            "give whole numbers from 0 to 65535, or leave it out"
        )
    rows = experts.reshape(len(experts), -1)
    return rows.astype(np.uint8) if rows.max() <= np.iinfo(np.uint8).max else rows.astype(np.uint16)


def _name(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if record.get(name) is not None), names[0])


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)
