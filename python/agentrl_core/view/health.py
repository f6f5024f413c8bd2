"""Health signs of a run: the strip at the top of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from agentrl_core.operators.importance import importance_diagnostics

if TYPE_CHECKING:
    from agentrl_core.integrations.polars.tables import Tables

RECOMPUTED = "recomputed_logprob"


class Sign(NamedTuple):
    """A health sign of a run: a number, a level and an explanation.

    Args:
        name: name of the sign.
        value: the formatted number.
        level: `good`, `watch` or `bad`.
        meaning: the meaning of the sign, and what to do.
        filter: name of the page's filter for affected groups; empty if there is none.
    """

    name: str
    value: str
    level: str
    meaning: str
    filter: str = ""


def signs(tables: Tables, iterations: pl.DataFrame, groups: pl.DataFrame) -> list[Sign]:
    """Return the signs of a run, over its latest quarter of iterations (at least one).

    Args:
        tables: tables of the run.
        iterations: `statistics` of the run.
        groups: `of_groups` of the run.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> from agentrl_core.view.blocks import Chosen
        >>> from agentrl_core.view.groups import of_groups
        >>> from agentrl_core.view.health import signs
        >>> from agentrl_core.view.iteration_statistics import statistics
        >>> with tempfile.TemporaryDirectory() as folder, arl.Store.open(f"{folder}/run") as store:
        ...     run = arl.scan(store)
        ...     signs(run, statistics(run), of_groups(run, Chosen.of(run, (0, 1), 1)))
        []
    """
    if iterations.is_empty():
        return []
    recent = iterations.sort("iteration").tail(max(1, len(iterations) // 4))
    is_recent = pl.col("iteration").is_in(recent["iteration"].implode())
    recent_groups = groups.filter(is_recent)
    rows: dict[str, Any] = {name: recent[name].mean() for name in recent.columns}
    results = [
        _share(
            "same rewards",
            rows["same_reward"],
            0.5,
            0.8,
            "of the groups have equal scores, so they train nothing",
            "same",
        ),
        _share("tool errors", rows["tool_errors"], 0.1, 0.3, "of the tool calls failed", "tool_errors"),
    ]
    sums: dict[str, Any] = {
        name: recent_groups[name].sum() for name in ("turns", "drifted", "members", "truncated", "failed")
    }
    turns, members = max(sums["turns"], 1), max(sums["members"], 1)
    results.append(
        _share(
            "drift", sums["drifted"] / turns, 0.01, 0.1, "of the turns have other tokens in the next prompt", "drifted"
        )
    )
    results.append(
        _share(
            "truncated",
            sums["truncated"] / members,
            0.1,
            0.3,
            "of the rollouts reached a limit of tokens or turns",
            "truncated",
        )
    )
    results.append(
        _share("failures", sums["failed"] / members, 0.01, 0.1, "of the rollouts failed or were aborted", "failed")
    )
    results += _others(iterations.sort("iteration"), rows)
    longest: Any = recent_groups["length"].max()
    if longest and rows["length"] is not None:
        empty = 1 - rows["length"] / longest
        results.append(Sign("padding", f"{empty:.0%}", "good", "of a padded batch would be padding; packs have none"))
    results += [_effective(tables, is_recent), _not_finite(tables, is_recent)]
    return [sign for sign in results if sign is not None]


def _others(iterations: pl.DataFrame, rows: dict[str, Any]) -> list[Sign]:
    results = []
    if rows["staleness"] is not None:
        level = "good" if rows["staleness"] < 2 else "watch" if rows["staleness"] < 8 else "bad"
        results.append(
            Sign(
                "staleness",
                f"{rows['staleness']:.1f}",
                level,
                "updates between sampling and training, on average",
                "stale",
            )
        )
    first, last = iterations["entropy"].drop_nulls().head(1), rows["entropy"]
    if len(first) and last is not None and first[0] > 0:
        share = last / first[0]
        level = "good" if share > 0.5 else "watch" if share > 0.2 else "bad"
        results.append(Sign("entropy", f"{share:.0%}", level, "of the initial entropy is left"))
    if rows["sharing"] is not None:
        results.append(
            Sign("sharing", f"{rows['sharing']:.2f} x", "good", "mean number of draws that use a stored token")
        )
    return results


def _effective(tables: Tables, is_recent: pl.Expr) -> Sign | None:
    """Return the sign for the effective sample size of token importance weights, from recomputed log-probs."""
    if RECOMPUTED not in tables.node_columns.collect_schema().names():
        return None
    nodes = tables.nodes.join(
        tables.trajectories.filter(is_recent).select("group_id").unique(), on="group_id", how="semi"
    )
    pairs = (
        nodes.select("node_id", "logprobs")
        .drop_nulls()
        .join(tables.node_columns.select("node_id", RECOMPUTED), on="node_id")
    )
    tokens: Any = pairs.explode("logprobs", RECOMPUTED)
    ratios = tokens.select(pl.col(RECOMPUTED) - pl.col("logprobs")).collect().to_series().drop_nans().drop_nulls()
    if ratios.is_empty():
        return None
    share = importance_diagnostics(ratios, np.arange(len(ratios) + 1)).effective_fraction
    level = "good" if share > 0.8 else "watch" if share > 0.5 else "bad"
    return Sign("effective samples", f"{share:.0%}", level, "of the tokens: effective sample size of their weights")


def _not_finite(tables: Tables, is_recent: pl.Expr) -> Sign:
    """Return the sign for the number of metrics that are not finite."""
    broken: Any = tables.metrics.filter(is_recent, ~pl.col("value").is_finite()).select("name").collect()["name"]
    names = sorted(set(broken))
    level = "bad" if "loss" in names else "watch" if names else "good"
    meaning = f"measured numbers are not finite: {', '.join(names[:3])}" if names else "all measured numbers are finite"
    return Sign("not finite", str(len(broken)), level, meaning)


def _share(name: str, value: float | None, watch: float, bad: float, meaning: str, filtered: str) -> Sign | None:
    """Return the sign for a share that should be small; None if the share is unknown."""
    if value is None or value != value:  # noqa: PLR0124  # NaN
        return None
    level = "bad" if value >= bad else "watch" if value >= watch else "good"
    return Sign(name, f"{value:.0%}", level, meaning, filtered)
