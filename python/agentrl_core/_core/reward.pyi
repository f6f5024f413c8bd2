# What rewards are made of.

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "answer_ids",
    "checklist",
    "cluster_votes",
    "dither",
    "edit_distances",
    "excess_penalty",
    "implicit",
    "information_gain",
    "max_at_k",
    "rank_agreement",
    "success_distance",
    "tail_risk",
    "top_gap",
    "tracked_quantiles",
    "win_rates",
    "window_means",
]

_Bool: TypeAlias = NDArray[np.bool_]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_U32: TypeAlias = NDArray[np.uint32]

def excess_penalty(amounts: _F64, free: float, full_at: float, coefficient: float, at_most: float | None) -> _F64: ...
def dither(scores: _F64, ids: _I64, seed: int, amplitude: float, kind: str) -> _F64: ...
def max_at_k(
    rewards: _F64,
    groups: _U32,
    *,
    k: int,
    leave_one_out: bool,
    ratio_excess: _F64 | None = None,
    valid: _Bool | None = None,
) -> _F64: ...
def top_gap(rewards: _F64, groups: _U32, *, valid: _Bool | None = None) -> _F64: ...
def win_rates(first: _I64, second: _I64, probability: _F64, count: int) -> _F64: ...
def answer_ids(answers: list[Any], groups: _U32) -> tuple[_U32, _Bool]: ...
def cluster_votes(
    clusters: _U32, groups: _U32, parsed: _Bool | None = None, weights: _F64 | None = None
) -> tuple[_F64, _Bool, _F64, _F64, _U32]: ...
def tracked_quantiles(state: _F64 | None, values: _F64, levels: _F64, step_size: float) -> tuple[_F64, _F64]: ...
def tail_risk(
    scores: _F64,
    low: _F64,
    high: _F64,
    *,
    alpha_low: float,
    alpha_high: float,
    omega: float,
    natural_baseline: bool,
    tail: str,
    curve: tuple[_F64, _F64] | None = None,
) -> _F64: ...
def window_means(values: _F64, offsets: _I64, width: int) -> _F64: ...
def edit_distances(first: _U32, first_offsets: _I64, second: _U32, second_offsets: _I64) -> _I64: ...
def rank_agreement(scores: _F64, truths: _F64, offsets: _I64) -> _F64: ...
def information_gain(answer_logprobs: _F64, offsets: _I64, before: _F64, kind: str) -> _F64: ...
def implicit(logprobs: _F64, reference_logprobs: _F64, offsets: _I64 | None, beta: float) -> _F64: ...
def checklist(
    satisfied: _Bool, items: int, dependencies: _Bool, offsets: _I64, delay: float
) -> tuple[_F64, _F64, _Bool]: ...
def success_distance(
    embeddings: _F64,
    width: int,
    success: _Bool,
    groups: _U32,
    *,
    radius: float,
    members_at_least: int,
    at_most: float,
    slope: float,
) -> _F64: ...
