"""Rollouts that slime stores with `--save-debug-rollout-data`: token ids, log-probs and rewards of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.data.table_codes import ROUTED_EXPERTS
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import RECORD, UNTRAINED, HiddenReasoning, Message

_IN_TURNS = ("tokens", "loss_mask", "rollout_log_probs")
_ROUTES = "rollout_routed_experts"
_IMAGES = ("multimodal_inputs", "multimodal_train_inputs")


def recognised(value: object) -> bool:
    """Return whether a record is a dump of slime, or a sample of one."""
    if not isinstance(value, Mapping):
        return False
    samples = value.get("samples")
    first = samples[0] if isinstance(samples, list) and samples else value
    return isinstance(first, Mapping) and {"tokens", "response_length"} <= first.keys()


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:  # noqa: ARG001 -- ids hide none
    """Yield the turns of each sample, and its other fields; samples with one `group_index` form a group."""
    for record in records:
        row = record.mapping()
        samples = row.get("samples", [row])
        if not isinstance(samples, list):
            raise InvalidInputError(f"{record.where}: samples is {samples!r:.60}; give a list of samples")
        step = row.get("rollout_id") if "samples" in row else None
        for number, sample in enumerate(samples):
            yield _sample(sample, step, f"{record.where}, sample {number}")


def _sample(sample: Any, step: object, where: str) -> Message:
    if not isinstance(sample, Mapping) or sample.get("tokens") is None or sample.get("response_length") is None:
        missing = "tokens" if not isinstance(sample, Mapping) or sample.get("tokens") is None else "response_length"
        raise InvalidInputError(f"{where} has no {missing}; give a Sample as slime stores it")
    if any(sample.get(name) for name in _IMAGES):
        refuse(where, "it has images, which turns of tokens do not hold", "leave the sample out")
    tokens, length = _plain(sample["tokens"]), int(sample["response_length"])
    if not 0 < length < len(tokens):
        raise InvalidInputError(
            f"{where}: response_length is {length} for {len(tokens)} tokens; give at least one token of the prompt and "
            "one of the response"
        )
    reason = ""
    turn = {"prompt_token_ids": tokens[:-length], "completion_token_ids": tokens[-length:]}
    mask, logprobs = _plain(sample.get("loss_mask")), _plain(sample.get("rollout_log_probs"))
    if sample.get("remove_sample") or (mask is not None and not any(mask)):
        turn["weight"] = 0
        reason = "remove_sample is set" if sample.get("remove_sample") else "its loss_mask trains no token"
    elif mask is not None:
        turn["loss_mask"] = mask
    if logprobs is not None:
        turn["logprobs"] = logprobs
    if sample.get(_ROUTES) is not None:
        turn[ROUTED_EXPERTS] = sample[_ROUTES]
    group = sample.get("group_index")
    record = {name: _plain(value) for name, value in sample.items() if name not in (*_IN_TURNS, _ROUTES)}
    chat: Message = {"turns": [turn], RECORD: record}
    if reason:
        chat[UNTRAINED] = [f"{where}: {reason}"]
    if group is not None:
        chat["task"] = str(group) if step is None else f"{step}/{group}"
    reward = record.get("reward")
    if isinstance(reward, (int, float)):
        chat["reward"] = float(reward)
    return chat


def _plain(value: Any) -> Any:
    """Convert tensors and arrays in a value to lists."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
