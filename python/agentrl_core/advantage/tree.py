"""Advantages on the token tree that the draws of a group share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.relative_to_group import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, step, token
from agentrl_core.operators import tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch

_OF_DRAWS = ("ancestors", "baseline", "order")


@dataclass(frozen=True)
class TreeRelative(BatchComponent):
    """Advantage of branches in a tree of rollouts: credit at the points where rollouts diverge.

    Values of draws are aggregated up the tree of their shared steps (or tokens), and compared there. A shared step is
    one node, and a group is one tree. V(node) aggregates the values of the draws through it (`fuse`). By `kind`:

    - `depth`: each node's V against the nodes of its tree at its depth; the step gets it (BranchGRPO arXiv:2509.06040);
    - `sibling`: against the other continuations of the same prefix (TreeRL);
    - `none`: V itself. After `GroupRelative`, with `column="advantage"`: ARPO's hard attribution, arXiv:2507.19849;
    - `ancestors`: each draw against all draws it shares a prefix with, averaged over its prefixes (TreePO
      arXiv:2508.17445, which whitens the result);
    - `baseline`: x - trace * V(start of the draw's own part), minus the group's mean (Tree-OPO arXiv:2509.09284,
      with `normalisation=Normalisation(scale="none")`);
    - `order`: the nearest values that do not fall from a start to the starts below it (Tree-OPO's projection, whose
    margins the paper does not give).

    The first three make a step (or token) column, the last three a draw column. Draws without a score neither vote nor
    get a value.

    Args:
        column: values of draws.
        level: unit of a node: a `step` or a `token`. Forks inside a step need tokens.
        fuse: definition of V: the mean of the `leaves` below; of the leaves by the probability of their path from the
            node (`leaf_path`); of the `children`; of the children by their probability (`path`); their `expectile`; the
            `max`, the `min` or the `sum` below.
        alpha: for `path` and `leaf_path`: w_c = softmax(alpha * log p(c)).
        node_logprob: for `path` and `leaf_path`: log p of a node is the `sum` or the `mean` over its trainable tokens.
        expectile: for `expectile`: 0.5 is the mean of the children, 1 their maximum.
        kind: as above.
        normalisation: how values are compared, at `depth`, `sibling` and `baseline`.
        weighting: for `ancestors`: prefixes count equally (`average`) or by the draws through them (`group_size`).
        drop_constant: for `ancestors`: leave out prefixes below which all draws have the same value.
        singleton: for `ancestors`: result of the only draw of a tree: 0 (`zero`), or its value (`raw`, TreePO).
        trace: for `baseline`, 0 to 1.
        margin: for `order`, at least 0: how much more a start must have than one above it.
        radius: for `order`: centred, and of norm at most sqrt(draws) (`soft`) or exactly (`hard`); or unchanged
            (`none`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import TreeRelative
        >>> TreeRelative().makes, TreeRelative(kind="ancestors").makes
        ((step('advantage'),), (draw('advantage'),))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("group_id"), draw("trajectory_id"))

    column: str = column_name("score", level="draw")
    level: Literal["step", "token"] = "step"
    fuse: Literal["leaves", "leaf_path", "children", "path", "expectile", "max", "min", "sum"] = "leaves"
    alpha: float = option(1.0, at_least=0)
    node_logprob: Literal["sum", "mean"] = "sum"
    expectile: float = option(0.7, at_least=0, at_most=1)
    kind: Literal["depth", "sibling", "none", "ancestors", "baseline", "order"] = "depth"
    normalisation: Normalisation = Normalisation(eps=1e-8, scale_above=1e-6, at_most=5.0)
    weighting: Literal["average", "group_size"] = "average"
    drop_constant: bool = False
    singleton: Literal["zero", "raw"] = "zero"
    trace: float = option(0.5, at_least=0, at_most=1)
    margin: float = option(0.0, at_least=0)
    radius: Literal["none", "soft", "hard"] = "soft"

    def own_needs(self) -> Iterable[Column]:
        """Yield the columns to read besides `column`: those of the tree, and behaviour log-probs if `fuse` uses any."""
        yield from (step("origin_trajectory_id"), step("step")) if self.level == "step" else (token("node_token"),)
        if self.fuse in ("path", "leaf_path"):
            yield token("behaviour_logprob")

    def own_makes(self) -> Iterable[Column]:
        """Return the column that is made: `advantage` of draws, or of steps or tokens."""
        return (Column("draw" if self.kind in _OF_DRAWS else self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage`."""
        draws = Rows(batch, "draw")
        nodes = _SharedRows(batch, self.level)
        values = draws.values(self.column)
        valid = draws.valid & np.isfinite(values)
        if self.kind == "ancestors":
            advantages = tree.ancestor_relative(
                nodes.parents,
                nodes.ends,
                values,
                weighting=self.weighting,
                drop_constant=self.drop_constant,
                singleton=self.singleton,
                valid=valid,
            )
            return draws.write(advantage=advantages)
        if self.kind == "order":
            return draws.write(advantage=self._ordered(nodes, values, valid))
        if self.fuse == "leaf_path":
            fused, masses = nodes.by_path(values, valid, self.alpha * nodes.logprobs(self.node_logprob))
        else:
            fused, masses = tree.fuse(
                nodes.parents,
                nodes.ends,
                values,
                kind=self.fuse,
                alpha=self.alpha,
                expectile=self.expectile,
                edge_logprobs=nodes.logprobs(self.node_logprob) if self.fuse == "path" else None,
                valid=valid,
            )
        if self.kind == "baseline":
            gain = values - self.trace * fused[nodes.starts]
            return draws.write(advantage=self.normalisation.compare(gain, draws.keys("group_id"), valid=valid))
        if self.kind != "none":
            peers = tree.peers(nodes.parents, kind="depth" if self.kind == "depth" else "siblings")
            fused = self.normalisation.compare(fused, peers, valid=masses > 0.0)
        of_row = fused[nodes.of_rows]
        return nodes.rows.write(advantage=np.where(valid[nodes.rows.draws], of_row, 0.0))

    def _ordered(
        self, nodes: _SharedRows, values: NDArray[np.float64], valid: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return each draw's value after isotonic regression on the mean value of the draws that start at each node."""
        count = len(nodes.parents)
        starts = nodes.starts[valid]
        weight = np.bincount(starts, minlength=count).astype(np.float64)
        mean = np.bincount(starts, weights=values[valid], minlength=count) / np.maximum(weight, 1.0)
        projected = tree.isotonic(
            nodes.parents,
            mean,
            margin=self.margin,
            radius=self.radius,
            weights=np.maximum(weight, 1.0),
            valid=weight > 0.0,
        )
        return np.where(valid, projected[nodes.starts], 0.0)


class _SharedRows:
    """The trees of a batch, with one node for each physical step or token, and a root for each group."""

    def __init__(self, batch: Batch, level: Literal["step", "token"]) -> None:
        self.rows = Rows(batch, level)
        self.of_rows = self.rows.keys("origin_trajectory_id,step" if level == "step" else "node_token")
        groups = batch.keys("group_id", "draw")
        count = int(self.of_rows.max()) + 1 if len(self.of_rows) else 0
        roots = self.roots = (count + groups).astype(np.int64)
        draws = self.rows.draws
        first = np.append(True, draws[1:] != draws[:-1])[: len(draws)]
        before = np.append(0, self.of_rows)[: len(draws)].astype(np.int64)
        self.parents = np.full(count + int(groups.max(initial=0)) + 1, -1, dtype=np.int64)
        self.parents[self.of_rows] = np.where(first, roots[draws], before)
        self.ends = roots.astype(np.uint32)
        self.ends[draws] = self.of_rows  # for rows of a draw at one node, the last one wins
        self.starts = self.ends.astype(np.int64)
        own_rows = np.flatnonzero(self._values("origin_trajectory_id") == self._values("trajectory_id"))
        owners, position = np.unique(draws[own_rows], return_index=True)
        self.starts[owners] = self.parents[self.of_rows[own_rows[position]]]

    def _values(self, name: str) -> NDArray[np.int64]:
        return np.asarray(self.rows.batch.column(name, self.rows.level), dtype=np.int64)

    def logprobs(self, of_node: Literal["sum", "mean"]) -> NDArray[np.float64]:
        """Return the behaviour log-prob of each node's trainable tokens, summed or averaged; 0 at the roots."""
        tokens = Rows(self.rows.batch, "token")
        is_trained, place = tokens.flags("trainable"), tokens.within(self.rows.level)
        values = np.where(is_trained, tokens.values("behaviour_logprob"), 0.0)
        of_nodes = np.bincount(place, weights=values, minlength=len(self.of_rows)).astype(np.float64)
        if of_node == "mean":
            of_nodes /= np.maximum(np.bincount(place, weights=is_trained, minlength=len(self.of_rows)), 1.0)
        logprobs = np.zeros(len(self.parents))
        logprobs[self.of_rows] = of_nodes
        return logprobs

    def by_path(
        self, values: NDArray[np.float64], valid: NDArray[np.bool_], logprobs: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean value of each node's draws, weighted by exp(path log-prob - largest), and the total weight.

        The part of a path above the node is common to its draws, so that it cancels out.
        """
        count = len(values)
        pairs = np.unique(self.of_rows.astype(np.int64) * count + self.rows.draws)
        paths = np.bincount(pairs % count, weights=logprobs[pairs // count], minlength=count)
        draws = np.append(pairs % count, np.arange(count))
        nodes = np.append(pairs // count, self.roots)
        draws, nodes = draws[valid[draws]], nodes[valid[draws]]
        top = np.full(len(self.parents), -np.inf)
        np.maximum.at(top, nodes, paths[draws])
        weights = np.exp(paths[draws] - top[nodes])
        masses = np.bincount(nodes, weights=weights, minlength=len(self.parents)).astype(np.float64)
        fused = np.bincount(nodes, weights=weights * values[draws], minlength=len(self.parents))
        return fused / np.where(masses > 0.0, masses, 1.0), masses
