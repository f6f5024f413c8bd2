"""Export a session in the formats that other trainers read."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.records import SessionRecord, SessionTurn
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError


def export_session(recorded: SessionRecord, shape: str) -> Json:
    """Return a session as JSON: `openenv` (TRL and OpenEnv), `rllm` (gateway traces) or `agent-lightning` (events).

    Raises:
        InvalidInputError: no such shape.
    """
    if shape not in _SHAPES:
        raise InvalidInputError(f"shape is {shape!r}; give one of: arrow, {', '.join(_SHAPES)}")
    return {"session_id": recorded.session, "task_id": recorded.task, **_SHAPES[shape](recorded)}


def arrow(batch: Batch) -> bytes:
    """Return the turns of a batch as an Arrow stream, one row each, with sampled tokens, log-probs and rewards."""
    import polars as pl

    steps = pl.DataFrame(batch.steps).select("trajectory_id", "step", "node_id", "reward", "drift", "drift_at")
    nodes = pl.DataFrame(batch.nodes).select(
        "node_id", "parent_id", "tokens", "logprobs", "policy_version", "finish_reason"
    )
    facts = pl.DataFrame(batch.trajectories).select(
        "trajectory_id", "task_id", "group_id", "status", "success", pl.col("reward").alias("outcome")
    )
    turns = steps.join(nodes, on="node_id", maintain_order="left").join(
        facts, on="trajectory_id", maintain_order="left"
    )
    target = io.BytesIO()
    turns.write_ipc_stream(target)
    return target.getvalue()


def _tokens(recorded: SessionRecord, turn: SessionTurn) -> Json:
    return {
        "prompt_token_ids": recorded.context(turn.number).tolist(),
        "completion_token_ids": turn.output.tolist(),
        "logprobs": [None if math.isnan(value) else value for value in turn.logprobs.tolist()],
    }


def _openenv(recorded: SessionRecord) -> Json:
    entries = []
    for turn in recorded.turns:
        tokens = _tokens(recorded, turn)
        entries.append(
            {
                "request": {"prompt_token_ids": tokens["prompt_token_ids"]},
                "response": {"message": turn.message, "finish_reason": turn.finish_reason},
                "completion_token_ids": tokens["completion_token_ids"],
                "per_token_logps": tokens["logprobs"],
            }
        )
    return {"entries": entries}


def _rllm(recorded: SessionRecord) -> Json:
    traces = [
        {
            "trace_id": f"{recorded.session}-{turn.number}",
            "session_id": recorded.session,
            "response_message": turn.message,
            "finish_reason": turn.finish_reason,
            "weight_version": turn.version,
            **_tokens(recorded, turn),
        }
        for turn in recorded.turns
    ]
    return {"traces": traces, "reward": (recorded.closed or {}).get("reward")}


def _agent_lightning(recorded: SessionRecord) -> Json:
    events: list[Json] = []
    for turn in recorded.turns:
        events.append(
            {"type": "model_request", "sequence": len(events), "message": turn.message, **_tokens(recorded, turn)}
        )
        if turn.reward is not None:
            events.append({"type": "reward", "sequence": len(events), "reward": turn.reward})
    if recorded.closed is not None:
        events.append({"type": "reward", "sequence": len(events), "reward": recorded.closed.get("reward")})
    return {"events": events}


_SHAPES: dict[str, Callable[[SessionRecord], Json]] = {
    "openenv": _openenv,
    "rllm": _rllm,
    "agent-lightning": _agent_lightning,
}
