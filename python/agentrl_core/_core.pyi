# The compiled core: what the Python classes and functions of this package are thin forms of. Private.
#
# Arrays that come back are new and belong to the caller. What is raised on purpose are the classes of
# `agentrl_core.exceptions`, and `TypeError` where an argument has a type that Python itself refuses.

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

# fmt: off
__all__ = [
    "Batch",
    "Forest",
    "Plan",
    "PlannedPack",
    "RowPack",
    "Store",
    "Table",
    "Tree",
    "__version__",
    "append_chats",
    "append_many",
    "arrow_lists",
    "arrow_numbers",
    "dense_keys",
    "discounted",
    "entropy_branches",
    "filter_group_band",
    "filter_not_overlong",
    "filter_round_rows",
    "filter_top_groups",
    "filter_unflagged",
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
    "ingest",
    "label_keys",
    "n_step",
    "normalise",
    "num_threads",
    "optimal_token_baseline",
    "pack_balanced",
    "pack_continuations",
    "pair_keys",
    "pair_streams",
    "reward_checklist",
    "reward_cluster_votes",
    "reward_dither",
    "reward_excess_penalty",
    "reward_implicit",
    "reward_information_gain",
    "reward_max_at_k",
    "reward_rank_agreement",
    "reward_success_distance",
    "reward_tail_risk",
    "reward_tiers",
    "reward_top_gap",
    "reward_tracked_quantiles",
    "reward_win_rates",
    "reward_window_means",
    "segment_entropy",
    "set_num_threads",
    "similar_keys",
    "structural_seed",
    "tree_ancestor_relative",
    "tree_build",
    "tree_fuse",
    "tree_isotonic",
    "tree_layout",
    "tree_path_sum",
    "tree_peers",
    "tree_topology",
    "uniform",
    "v_trace",
    "weight_above_quantile",
    "weight_conflict_tokens",
    "weight_constant",
    "weight_importance",
    "weight_importance_diagnostics",
    "weight_max_variance",
    "weight_mean_of_means",
    "weight_quota",
    "weight_shares",
    "weight_top",
    "weight_trust_region",
]
# fmt: on

__version__: str

_Float = TypeVar("_Float", np.float32, np.float64)
_F32: TypeAlias = NDArray[np.float32]
_F64: TypeAlias = NDArray[np.float64]
_I64: TypeAlias = NDArray[np.int64]
_I32: TypeAlias = NDArray[np.int32]
_U32: TypeAlias = NDArray[np.uint32]
_Bool: TypeAlias = NDArray[np.bool_]
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
        in_round: int,
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
    def blob(self, sha256: bytes) -> bytes: ...
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
    def texts(self, name: str, level: _Level) -> list[str]: ...
    def offsets(self, level: _Level) -> NDArray[np.int64]: ...
    def contexts(self) -> tuple[NDArray[np.int32], list[NDArray[np.int64]]]: ...
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
    def draw(
        self,
        trajectory_ids: NDArray[np.int64],
        *,
        group_ids: NDArray[np.int64] | None,
        source: str,
        probability: NDArray[np.float64] | None,
        old_logprob: str,
        reason: str | None,
        iteration: int | None,
    ) -> Batch: ...
    def plan(
        self,
        draws: NDArray[np.int64],
        max_tokens: int,
        *,
        layout: str = "sequence",
        unit_of: NDArray[np.int64] | None = None,
        trained: NDArray[np.bool_] | None = None,
        fold: Sequence[NDArray[np.float32]] | None = None,
        shards: int | None = None,
        balance: str = "tokens",
    ) -> Plan: ...
    @staticmethod
    def concat(parts: Sequence[Batch]) -> Batch: ...
    def advance_tasks(self, previous: Batch, domains: dict[str, str]) -> tuple[Batch, Batch]: ...
    @staticmethod
    def empty() -> Batch: ...
    def to_bytes(self) -> list[NDArray[np.uint8]]: ...
    @staticmethod
    def from_bytes(parts: Sequence[NDArray[np.uint8]]) -> Batch: ...

@final
class Plan:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> PlannedPack: ...
    def __iter__(self) -> Iterator[PlannedPack]: ...
    def pack(
        self,
        index: int,
        take: Callable[[str, int, np.dtype[Any]], NDArray[Any]] | None = None,
        *,
        same: Mapping[str, NDArray[np.float32]] | None = None,
        summed: Sequence[str] | None = None,
        weights: NDArray[np.float64] | None = None,
        credit: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> PlannedPack: ...

@final
class PlannedPack:
    @property
    def layout(self) -> str: ...
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
    @property
    def subtree_end(self) -> NDArray[np.int32]: ...
    @property
    def pair_offsets(self) -> NDArray[np.int64]: ...
    @property
    def pair_tokens(self) -> NDArray[np.int64]: ...
    @property
    def streams(self) -> dict[str, NDArray[np.float32]]: ...

@final
class RowPack:
    @property
    def input_ids(self) -> NDArray[np.int64]: ...
    @property
    def position_ids(self) -> NDArray[np.int64]: ...
    @property
    def subtree_end(self) -> NDArray[np.int32]: ...
    @property
    def cu_seqlens(self) -> NDArray[np.int32]: ...
    @property
    def source_row(self) -> NDArray[np.int64]: ...
    @property
    def target(self) -> NDArray[np.int64]: ...
    @property
    def token(self) -> NDArray[np.int64]: ...
    @property
    def pair_offsets(self) -> NDArray[np.int64]: ...
    @property
    def pair_tokens(self) -> NDArray[np.int64]: ...

@final
class Store:
    @staticmethod
    def open(path: str | PathLike[str], *, read_only: bool = False, sync: str = "batch") -> Store: ...
    @staticmethod
    def open_snapshot(path: str | PathLike[str], snapshot: str) -> Store: ...
    def close(self) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def iteration(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def snapshot(self) -> str: ...
    @property
    def state(self) -> str: ...
    def refresh(self) -> None: ...
    def table(self, name: str) -> Table: ...
    def journal(self) -> Table: ...
    def files(self, name: str) -> list[tuple[Path, int]]: ...
    def rebase(self, batch: Batch) -> Batch: ...
    def append(self, batch: Batch, iteration: int, *, partial: bool = False) -> int: ...
    def flush(self) -> int: ...
    def close_iteration(self, batch: Batch, state: str) -> int: ...
    def has_batch(self, iteration: int) -> bool: ...
    def batch(self, iteration: int) -> Batch: ...
    def batch_of(self, trajectory_ids: NDArray[np.int64]) -> Batch: ...
    def blob(self, sha256: bytes) -> bytes: ...
    def compact(self) -> int: ...
    def drop_before(self, iteration: int, *, rewrite: bool = False) -> None: ...
    def verify(self) -> list[tuple[str, str, int | None, str]]: ...
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

def arrow_lists(values: object, name: str) -> tuple[NDArray[Any], NDArray[np.int64]] | None: ...
def arrow_numbers(values: object, name: str) -> NDArray[Any]: ...
def release_locks() -> None: ...
def num_threads() -> int: ...
def set_num_threads(count: int) -> None: ...
def dense_keys(values: object, name: str = "values") -> tuple[NDArray[np.uint32], int]: ...
def label_keys(values: object, name: str = "values") -> NDArray[np.uint32]: ...
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
    ddof: int,
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
    ddof: int,
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
    whiten: float | None = None,
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
    ddof: int,
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
def ingest(
    forest: Forest, columns: dict[str, Any], realign: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int32]]: ...
def append_many(forest: Forest, columns: dict[str, Any], kinds: NDArray[np.uint8]) -> NDArray[np.int64]: ...
def append_chats(forest: Forest, columns: dict[str, Any]) -> NDArray[np.int64]: ...

# fmt: off
def filter_group_band(scores: _F64, groups: _U32, *, std_above: float | None, ddof: int, at_least: float | None,
    at_most: float | None, members_at_least: int, accept_single: bool, valid: _Bool | None = None) -> _Bool: ...
def filter_top_groups(scores: _F64, groups: _U32, *, fraction: float, ddof: int, valid: _Bool | None =
    None) -> _Bool: ...
def filter_unflagged(flags: _Bool, offsets: _I64) -> _Bool: ...
def filter_not_overlong(lengths: _I64, limit: int, *, truncated: _Bool | None = None) -> _Bool: ...
def filter_round_rows(keep: _Bool, scores: _F64, *, multiple: int, up: bool, valid: _Bool | None = None) -> _Bool: ...
def reward_excess_penalty(amounts: _F64, free: float, limit: float, coefficient: float, at_most: float | None
    ) -> _F64: ...
def reward_tiers(qualities: _F64, count: int) -> _F64: ...
def reward_dither(scores: _F64, ids: _I64, seed: int, amplitude: float, kind: str) -> _F64: ...
def reward_max_at_k(rewards: _F64, groups: _U32, *, k: int, leave_one_out: bool, ratio_excess: _F64 | None = None,
    valid: _Bool | None = None) -> _F64: ...
def reward_top_gap(rewards: _F64, groups: _U32, *, valid: _Bool | None = None) -> _F64: ...
def reward_win_rates(first: _U32, second: _U32, probability: _F64, count: int) -> _F64: ...
def reward_cluster_votes(clusters: _U32, groups: _U32, *, parsed: _Bool | None = None, weights: _F64 | None =
    None) -> dict[str, Any]: ...
def reward_tracked_quantiles(state: _F64 | None, values: _F64, levels: _F64, rate: float) -> tuple[_F64, _F64]: ...
def reward_tail_risk(scores: _F64, low: _F64, high: _F64, *, alpha_low: float, alpha_high: float, omega: float,
    natural_baseline: bool, tail: str, curve: tuple[_F64, _F64] | None = None) -> _F64: ...
def reward_window_means(values: _F64, offsets: _I64, width: int) -> _F64: ...
def reward_rank_agreement(scores: _F64, truths: _F64, offsets: _I64) -> _F64: ...
def reward_information_gain(answer_logprobs: _F64, offsets: _I64, before: _F64, kind: str) -> _F64: ...
def reward_implicit(logprobs: _F64, reference_logprobs: _F64, offsets: _I64 | None, beta: float) -> _F64: ...
def reward_checklist(satisfied: _Bool, items: int, dependencies: _Bool, offsets: _I64, delay:
    float) -> tuple[_F64, _F64, _Bool]: ...
def reward_success_distance(embeddings: _F64, width: int, success: _Bool, groups: _U32, *, radius: float, min_samples:
    int, at_most: float, slope: float) -> _F64: ...
def pair_streams(summed: Sequence[tuple[NDArray[np.floating[Any]], _F32]], first: Sequence[tuple[_F32, _F32]],
    pair_offsets: _I64, pair_tokens: _I64) -> None: ...
def pack_balanced(costs: _I64, bins: int) -> list[_I64]: ...
def pack_continuations(text: _I32, begins: _I64, ends: _I64, tails: _I32, tail_offsets: _I64, tail_of: _I64,
    max_tokens: int) -> list[_I64]: ...
def tree_layout(tokens: _I32, offsets: _I64, trained: _Bool | None, same: Sequence[NDArray[np.float32]],
    take: Callable[[str, int, np.dtype[Any]], NDArray[Any]] | None = None) -> RowPack: ...
def tree_build(elements: _I64, offsets: _I64) -> tuple[_I64, _U32]: ...
def tree_topology(parents: _I64) -> dict[str, Any]: ...
def tree_fuse(parents: _I64, nodes: _U32, values: _F64, *, how: str, alpha: float, expectile: float, edge_logprobs: _F64
    | None = None, weights: _F64 | None = None, valid: _Bool | None = None) -> tuple[_F64, _F64]: ...
def tree_path_sum(parents: _I64, values: _F64) -> _F64: ...
def tree_ancestor_relative(parents: _I64, nodes: _U32, values: _F64, *, weighting: str, skip_constant: bool,
    singleton: str, weights: _F64 | None = None, valid: _Bool | None = None) -> _F64: ...
def tree_peers(parents: _I64, of: str) -> _U32: ...
def tree_isotonic(parents: _I64, values: _F64, *, margin: float, radius: str, weights: _F64 | None = None, valid:
    _Bool | None = None) -> _F64: ...
def weight_shares(step_keys: _U32, draws: _U32, valid: _Bool, shared: str) -> _F64: ...
def weight_mean_of_means(shares: _F64, units: Sequence[_U32]) -> _F64: ...
def weight_constant(shares: _F64, units: _U32, constant: float) -> _F64: ...
def weight_top(scores: NDArray[_Float], groups: _U32, *, count: int | None, fraction: float | None, rounding: str,
    at_least: int, largest: bool, ties: str, valid: _Bool | None = None) -> _Bool: ...
def weight_above_quantile(scores: NDArray[_Float], groups: _U32, *, q: float, interpolation: str, strict: bool,
    valid: _Bool | None = None) -> _Bool: ...
def weight_max_variance(scores: _F64, groups: _U32, *, count: int | None, fraction: float | None, rounding: str,
    at_least: int, valid: _Bool | None = None) -> _Bool: ...
def weight_quota(penalties: _F64, success: _Bool, groups: _U32, ids: _I64, *, target: int, minimum_failures: int,
    minimum_successes: int, seed: int | None, valid: _Bool | None = None) -> _Bool: ...
def weight_conflict_tokens(tokens: _I32, offsets: _I64, groups: _U32, advantages: _F64) -> tuple[_Bool, _Bool]: ...
def weight_importance(log_ratios: NDArray[_Float], offsets: _I64, *, level: str, at_least: float | None, at_most:
    float | None, action: str, segments: _I64 | None = None, mask: _Bool | None = None) -> NDArray[_Float]: ...
def weight_trust_region(log_ratios: NDArray[_Float], offsets: _I64, *, divergence: str, aggregate: str, at_least:
    float | None, at_most: float, mask: _Bool | None = None) -> _Bool: ...
def weight_importance_diagnostics(log_ratios: NDArray[_Float], offsets: _I64, *,
    mask: _Bool | None = None) -> dict[str, Any]: ...
# fmt: on
