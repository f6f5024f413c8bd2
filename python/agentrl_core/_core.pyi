# The compiled core: what the Python classes and functions of this package are thin forms of. Private.
#
# Arrays that come back are new and belong to the caller. What is raised on purpose are the classes of
# `agentrl_core.exceptions`, and `TypeError` where an argument has a type that Python itself refuses.

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Batch",
    "Forest",
    "PlannedPack",
    "Store",
    "Table",
    "__version__",
    "dense_keys",
    "discounted",
    "entropy_branches",
    "gae",
    "gigpo",
    "group_arg_extreme",
    "group_extents",
    "group_finish",
    "group_log_mean_exp",
    "group_map",
    "group_moments",
    "group_quantile",
    "group_statistics",
    "group_sums",
    "history_keys",
    "n_step",
    "normalise",
    "num_threads",
    "optimal_token_baseline",
    "pair_keys",
    "segment_entropy",
    "set_num_threads",
    "similar_keys",
    "structural_seed",
    "uniform",
    "v_trace",
]

__version__: str

_Float = TypeVar("_Float", np.float32, np.float64)
_Level: TypeAlias = Literal["draw", "step", "token", "node_token"]

@final
class Forest:
    def __new__(cls, *, iteration: int = ..., seed: int = ...) -> Self: ...
    @property
    def iteration(self) -> int: ...
    def __len__(self) -> int: ...
    def add_group(self, group: int, task_id: str) -> None: ...
    def start(self, group: int, member: int) -> int: ...
    def append(
        self,
        trajectory: int,
        tokens: Sequence[int] | NDArray[np.integer[Any]],
        *,
        kind: str,
        logprobs: Sequence[float] | NDArray[np.floating[Any]] | None = None,
        entropies: Sequence[float] | NDArray[np.floating[Any]] | None = None,
        trainable: Sequence[int] | NDArray[np.bool_] | NDArray[np.uint8] | None = None,
        state: bytes | None = None,
        policy: int = ...,
        policy_version: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = ...,
        finish_reason: str | None = None,
    ) -> int: ...
    def step(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        flags: int = ...,
    ) -> None: ...
    def fork(self, trajectory: int, *, node: int | None = None, end: int | None = None) -> int: ...
    def finish(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        success: bool | None = None,
        info: str | None = None,
        status: str = "finished",
    ) -> None: ...
    def prune(self, trajectory: int, reason: str) -> None: ...
    def abort(self) -> None: ...
    def tokens(self, trajectory: int) -> NDArray[np.int32]: ...
    def segment_seed(self, trajectory: int) -> int: ...
    def freeze(self) -> Batch: ...

@final
class Batch:
    @property
    def nodes(self) -> Table: ...
    @property
    def steps(self) -> Table: ...
    @property
    def trajectories(self) -> Table: ...
    @property
    def draws(self) -> Table: ...
    @property
    def tasks(self) -> Table: ...
    @property
    def draw_columns(self) -> Table | None: ...
    @property
    def step_columns(self) -> Table | None: ...
    @property
    def node_columns(self) -> Table | None: ...
    @property
    def num_draws(self) -> int: ...
    @property
    def path_tokens(self) -> int: ...
    def level_len(self, level: _Level) -> int: ...
    def column(self, name: str, level: _Level) -> NDArray[Any]: ...
    def keys(self, name: str, level: _Level) -> NDArray[np.uint32]: ...
    def texts(self, name: str, level: _Level) -> list[str]: ...
    def offsets(self, level: _Level) -> NDArray[np.int64]: ...
    def has(self, name: str, level: _Level) -> bool: ...
    def with_columns(self, level: _Level, **columns: NDArray[Any]) -> Batch: ...
    @property
    def state(self) -> str: ...
    def with_state(self, state: str) -> Batch: ...
    def with_source(self, recipe: str, options: str) -> Batch: ...
    def select_draws(self, indices: NDArray[np.int64]) -> Batch: ...
    def token_weights(
        self,
        draws: NDArray[np.int64],
        *,
        denominator: str,
        constant: float | None = None,
        shared: str = "each",
        valid: NDArray[np.bool_] | None = None,
        keep: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]: ...
    def plan(self, draws: NDArray[np.int64], max_tokens: int) -> list[PlannedPack]: ...
    @staticmethod
    def concat(parts: Sequence[Batch]) -> Batch: ...
    def advance_tasks(self, previous: Batch) -> tuple[Batch, Batch]: ...
    @staticmethod
    def empty() -> Batch: ...
    def to_bytes(self) -> list[bytes]: ...
    @staticmethod
    def from_bytes(parts: Sequence[bytes]) -> Batch: ...

@final
class PlannedPack:
    @property
    def input_ids(self) -> NDArray[np.int64]: ...
    @property
    def position_ids(self) -> NDArray[np.int64]: ...
    @property
    def cu_seqlens(self) -> NDArray[np.int32]: ...
    @property
    def max_seqlen(self) -> int: ...
    @property
    def source_row(self) -> NDArray[np.int64]: ...
    @property
    def target(self) -> NDArray[np.int64]: ...
    @property
    def token(self) -> NDArray[np.int64]: ...
    @property
    def node_token(self) -> NDArray[np.int64]: ...
    @property
    def draw(self) -> NDArray[np.int64]: ...

@final
class Store:
    @staticmethod
    def open(path: str | PathLike[str], *, read_only: bool = False) -> Store: ...
    def close(self) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def iteration(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def state(self) -> str: ...
    def table(self, name: str) -> Table: ...
    def rebase(self, batch: Batch) -> Batch: ...
    def append(self, batch: Batch, iteration: int) -> int: ...
    def close_iteration(self, batch: Batch, state: str) -> int: ...
    def has_batch(self, iteration: int) -> bool: ...
    def batch(self, iteration: int) -> Batch: ...
    def tasks(self) -> Batch: ...

@final
class Table:
    @property
    def column_names(self) -> list[str]: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def dense_keys(values: object) -> tuple[NDArray[np.uint32], int]: ...
def pair_keys(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], int]: ...
def history_keys(
    states: NDArray[np.uint32],
    trajectories: NDArray[np.uint32],
    groups: NDArray[np.uint32],
    levels: int,
) -> list[tuple[NDArray[np.uint32], NDArray[np.bool_]]]: ...
def similar_keys(
    texts: Sequence[str],
    groups: NDArray[np.uint32],
    threshold: float,
    sketch: tuple[int, int, int] | None = None,
) -> NDArray[np.uint32]: ...
def normalise(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    *,
    center: str = "mean",
    scale: str = "std",
    median: str = "midpoint",
    ddof: int = 1,
    eps: float = 1e-6,
    variance_eps: float = 0.0,
    floor: float = 0.0,
    min_scale: float = 0.0,
    min_count: int | None = None,
    singleton: str = "zero",
    clip: float | None = None,
    weights: NDArray[np.float64] | None = None,
    units: NDArray[np.uint32] | None = None,
    baseline: NDArray[np.float64] | None = None,
    divisor: NDArray[np.float64] | None = None,
    scale_groups: NDArray[np.uint32] | None = None,
    valid: NDArray[np.bool_] | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...

_Statistics: TypeAlias = tuple[
    NDArray[np.uint64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
]

def group_statistics(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    *,
    ddof: int = 1,
    weights: NDArray[np.float64] | None = None,
    units: NDArray[np.uint32] | None = None,
    valid: NDArray[np.bool_] | None = None,
) -> _Statistics: ...
def group_quantile(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    q: float,
    *,
    interpolation: str = "linear",
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]: ...
def group_log_mean_exp(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    temperature: float,
    *,
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]: ...
def group_arg_extreme(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    largest: bool,
    *,
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]: ...
def group_map(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    how: str,
    *,
    temperature: float = 1.0,
    eps: float = 0.0,
    constant: float = 0.0,
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[_Float]: ...
def group_sums(values: NDArray[_Float], groups: NDArray[np.uint32], count: int) -> NDArray[np.float64]: ...
def group_extents(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    count: int,
    *,
    weights: NDArray[np.float64] | None = None,
    valid: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]: ...
def group_moments(
    values: NDArray[_Float],
    groups: NDArray[np.uint32],
    counts: NDArray[np.uint64],
    least: NDArray[np.float64],
    most: NDArray[np.float64],
    heaviest: NDArray[np.float64],
    *,
    weights: NDArray[np.float64] | None = None,
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]: ...
def group_finish(
    counts: NDArray[np.uint64],
    least: NDArray[np.float64],
    most: NDArray[np.float64],
    heaviest: NDArray[np.float64],
    moments: NDArray[np.int64],
    ddof: int,
) -> _Statistics: ...
def discounted(
    rewards: NDArray[_Float],
    offsets: NDArray[np.int64],
    bootstrap: NDArray[_Float],
    gamma: float,
    *,
    mask: NDArray[np.bool_] | None = None,
    ends: NDArray[np.bool_] | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def gae(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    offsets: NDArray[np.int64],
    bootstrap: NDArray[_Float],
    gamma: float,
    lam: float,
    *,
    mask: NDArray[np.bool_] | None = None,
    ends: NDArray[np.bool_] | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def v_trace(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    log_ratios: NDArray[_Float],
    offsets: NDArray[np.int64],
    bootstrap: NDArray[_Float],
    gamma: float,
    lam: float,
    rho_cap: float,
    c_cap: float,
    *,
    mask: NDArray[np.bool_] | None = None,
    ends: NDArray[np.bool_] | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def n_step(
    rewards: NDArray[_Float],
    values: NDArray[_Float],
    offsets: NDArray[np.int64],
    bootstrap: NDArray[_Float],
    gamma: float,
    steps: int,
    *,
    mask: NDArray[np.bool_] | None = None,
    ends: NDArray[np.bool_] | None = None,
    out: NDArray[_Float] | None = None,
) -> NDArray[_Float]: ...
def optimal_token_baseline(
    returns: NDArray[np.float64],
    energies: NDArray[np.float64],
    offsets: NDArray[np.int64],
    groups: NDArray[np.uint32],
    *,
    align: str,
    eps: float,
    zero_tail: bool,
    mask: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]: ...
def gigpo(
    episode_scores: NDArray[_Float],
    step_returns: NDArray[_Float],
    groups: NDArray[np.uint32],
    trajectories: NDArray[np.uint32],
    anchors: NDArray[np.uint32],
    *,
    step_weight: float = 1.0,
    scale: str = "none",
    unit: str = "step",
    ddof: int = 1,
    eps: float = 1e-6,
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[_Float]: ...
def entropy_branches(
    groups: NDArray[np.uint32],
    entropy: NDArray[np.float64],
    initial_entropy: NDArray[np.float64],
    uniform: NDArray[np.float64],
    existing: NDArray[np.uint32],
    *,
    budget: int,
    beam: int,
    probability: float,
    entropy_weight: float,
) -> NDArray[np.uint32]: ...
def segment_entropy(
    entropies: NDArray[np.float32],
    offsets: NDArray[np.int64],
    limit: int,
    vocabulary: int,
    reduce: str = "sum",
) -> NDArray[np.float64]: ...
def structural_seed(*parts: int) -> int: ...
def uniform(seeds: NDArray[np.uint64], counter: int) -> NDArray[np.float64]: ...
