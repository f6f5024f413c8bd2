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
    "entropy_branches",
    "gigpo",
    "group_relative",
    "leave_one_out",
    "segment_entropy",
    "step_returns",
    "structural_seed",
    "uniform",
]

__version__: str

_Float = TypeVar("_Float", np.float32, np.float64)
_Level: TypeAlias = Literal["draw", "step", "token", "node_token"]

@final
class Forest:
    def __new__(
        cls,
        *,
        iteration: int = ...,
        seed: int = ...,
        reward_components: list[str] | None = None,
        entropies: str = "exact",
        max_blob_bytes: int | None = None,
    ) -> Self: ...
    @property
    def iteration(self) -> int: ...
    def __len__(self) -> int: ...
    def add_group(self, group: int, task_id: str) -> None: ...
    def add_blob(self, blob: bytes) -> bytes: ...
    def start(
        self,
        group: int,
        member: int,
        *,
        agent: int = ...,
        episode: int | None = None,
        parent: int | None = None,
        origin: str | None = None,
    ) -> int: ...
    def adopt(self, group: int, batch: Batch, trajectory_id: int, *, source: str | None = None) -> int: ...
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
        origin: int | None = None,
        blobs: list[bytes] | None = None,
    ) -> int: ...
    def append_many(
        self,
        trajectories: NDArray[np.int64],
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        *,
        kind: str,
        logprobs: NDArray[np.float32] | None = None,
        entropies: NDArray[np.float32] | None = None,
        trainable: NDArray[np.bool_] | None = None,
        states: list[bytes | None] | None = None,
        policy: int = ...,
        policy_version: int | None = None,
        seeds: NDArray[np.int64] | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = ...,
        finish_reasons: Sequence[str | None] | None = None,
    ) -> NDArray[np.int64]: ...
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
    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = None,
        end: int | None = None,
        count: int = ...,
        ordinal: int | None = None,
    ) -> list[int]: ...
    def splice(
        self, prefix: int, node: int | None, end: int | None, suffix: int, from_node: int, start: int
    ) -> int: ...
    def rollback(self, trajectory: int, node: int, end: int | None) -> int: ...
    def replace(self, trajectory: int, by: int) -> None: ...
    def rewrite(
        self, trajectory: int, tokens: Sequence[int] | NDArray[np.integer[Any]], state: bytes | None
    ) -> int: ...
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
    def prune(self, trajectory: int, reason: str, *, gradient_only: bool = False) -> None: ...
    def abort(self) -> None: ...
    def decide(
        self,
        operation: str,
        trajectory: int,
        *,
        round: int,
        ordinal: int | None = None,
        node: int | None = None,
        end: int | None = None,
        result: int | None = None,
        score: float | None = None,
        reason: str | None = None,
    ) -> None: ...
    def tokens(self, trajectory: int) -> NDArray[np.int32]: ...
    def segment_seed(self, trajectory: int) -> int: ...
    def frontier(self, group: int | None) -> dict[str, NDArray[Any]]: ...
    def tree(self, group: int) -> Tree: ...
    def freeze(self, partial: bool) -> Batch: ...

@final
class Tree:
    @property
    def node(self) -> NDArray[np.int64]: ...
    @property
    def parent(self) -> NDArray[np.int64]: ...
    @property
    def depth(self) -> NDArray[np.uint32]: ...
    @property
    def leaf_count(self) -> NDArray[np.uint32]: ...
    @property
    def enter(self) -> NDArray[np.uint32]: ...
    @property
    def exit(self) -> NDArray[np.uint32]: ...
    @property
    def preorder(self) -> NDArray[np.int64]: ...
    @property
    def leaves(self) -> NDArray[np.int64]: ...
    def path(self, node: int) -> NDArray[np.int64]: ...
    def ancestors(self, node: int) -> NDArray[np.int64]: ...
    def children(self, node: int) -> NDArray[np.int64]: ...
    def subtree(self, node: int) -> NDArray[np.int64]: ...
    def lowest_common_ancestor(self, first: int, second: int) -> int | None: ...
    def __len__(self) -> int: ...

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
    def decisions(self) -> Table: ...
    @property
    def reward_components(self) -> list[str] | None: ...
    @property
    def entropies(self) -> str | None: ...
    def tree(self) -> Tree: ...
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
    def offsets(self, level: _Level) -> NDArray[np.int64]: ...
    def has(self, name: str, level: _Level) -> bool: ...
    def with_columns(self, level: _Level, **columns: NDArray[Any]) -> Batch: ...
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

def dense_keys(values: object) -> tuple[NDArray[np.uint32], int]: ...
def group_relative(
    scores: NDArray[_Float],
    groups: NDArray[np.uint32],
    *,
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: str = "zero",
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[_Float]: ...
def leave_one_out(
    scores: NDArray[_Float],
    groups: NDArray[np.uint32],
    *,
    singleton: str = "zero",
    valid: NDArray[np.bool_] | None = None,
) -> NDArray[_Float]: ...
def step_returns(rewards: NDArray[_Float], trajectories: NDArray[np.uint32], gamma: float) -> NDArray[_Float]: ...
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
