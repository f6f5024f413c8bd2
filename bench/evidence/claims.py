"""Claims: comparisons that are written and committed before their runs. One file each in `claims/`."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import arms
import records
from records import Records, Run
from scores import METRICS, Metric, paired
from worlds import WORLDS

from agentrl_core import stats

FOLDER = Path(__file__).parent / "claims"
Direction = Literal["higher", "lower"]
LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and the comparison that tests it.

    Attributes:
        name: of the file.
        claim: the paper's claim in one sentence.
        source: the page or section with the claim.
        paper: its file in `tests/recipes/papers`, without the ending.
        worlds: worlds of the comparison; a seed's score is the mean over them.
        treatment: arm with the mechanism.
        baseline: arm without it.
        differ: all differences between the arms.
        metric: see `scores.METRICS`.
        expected: direction of treatment minus baseline.
        smallest_effect: smallest difference of interest.
        detectable_effect: difference that this number of pairs detects with a probability of 80 %, from the pilot; 0:
        not known
            yet, so that the claim cannot be run.
        seeds: number of pairs.
        tuning: settings that were tried for each arm before the runs, beyond the pilot of GRPO.
    """

    name: str
    claim: str
    source: str
    paper: str
    worlds: tuple[str, ...]
    treatment: str
    baseline: str
    differ: str
    metric: Metric
    expected: Direction
    smallest_effect: float
    detectable_effect: float
    seeds: int
    tuning: dict[str, int]

    def __post_init__(self) -> None:
        for world in self.worlds:
            self._require(world in WORLDS, "worlds", f"{world!r} is none; there are {', '.join(WORLDS)}")
        self._require(bool(self.worlds), "worlds", "name at least one")
        for name in ("treatment", "baseline"):
            arms.arm(getattr(self, name))
        self._require(self.treatment != self.baseline, "baseline", "it is the treatment; name another arm")
        self._require(self.metric in METRICS, "metric", f"{self.metric!r} is none; there are {', '.join(METRICS)}")
        self._require(self.expected in get_args(Direction), "expected", "write higher or lower")
        self._require(self.smallest_effect > 0, "smallest_effect", "write a number above 0")
        self._require(self.detectable_effect >= 0, "detectable_effect", "write the number of the pilot, or 0 before it")
        enough = stats.detectable_effect(self.seeds, simulations=100) < float("inf")
        self._require(enough, "seeds", f"{self.seeds} pairs cannot reject at 5 %; take at least 6")
        self._require(set(self.tuning) == {"treatment", "baseline"}, "tuning", "write the number of each arm")

    def _require(self, holds: bool, field: str, remedy: str) -> None:  # noqa: FBT001 -- the condition
        if not holds:
            raise ValueError(f"claim {self.name!r}: {field}: {remedy}")

    @property
    def path(self) -> Path:
        """Path of its file."""
        return FOLDER / f"{self.name}.toml"

    @property
    def digest(self) -> str:
        """Digest of its file, which its records contain."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]

    def runs(self) -> list[Run]:
        """Return its runs, pair by pair."""
        both = (self.baseline, self.treatment)
        return [Run(world, arm, seed) for seed in range(self.seeds) for world in self.worlds for arm in both]

    def outcome(self, study: Records) -> stats.PairedDifference | None:
        """Return treatment minus baseline of the complete pairs."""
        return paired(study, self.worlds, self.treatment, self.baseline, range(self.seeds), self.metric)


def load(name: str) -> Claim:
    """Return the claim of a file.

    Raises:
        ValueError: a field is missing, unknown or out of range.
    """
    path = FOLDER / f"{name}.toml"
    written: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Claim)} - {"name"}
    if wrong := known ^ written.keys():
        raise ValueError(f"claim {name!r}: {min(wrong)} is {'unknown' if min(wrong) in written else 'missing'}")
    return Claim(name=name, **{**written, "worlds": tuple(written["worlds"])})


def all_claims() -> list[Claim]:
    """Return all claims by name."""
    return [load(path.stem) for path in sorted(FOLDER.glob("*.toml"))]


def commit_of(claim: Claim) -> str:
    """Return the last commit that changed a claim's file.

    Raises:
        ValueError: the file has uncommitted changes.
    """
    path = str(claim.path)
    commit = records.git("log", "-1", "--format=%H", "--", path).strip()
    if not commit or records.git("status", "--porcelain", "--", path):
        raise ValueError(f"claim {claim.name!r} is not committed; commit it before its runs")
    return commit


def is_ancestor(commit: str, other: str) -> bool:
    """Return whether a commit equals another one or is an ancestor of it."""
    try:
        records.git("merge-base", "--is-ancestor", commit, other)
    except subprocess.CalledProcessError:
        return False
    return True


def verdict(claim: Claim, found: stats.PairedDifference, corrected: float) -> str:
    """Return the outcome of a comparison.

    Args:
        claim: the claim.
        found: treatment minus baseline.
        corrected: the p-value after Holm's correction over all claims.
    """
    sign = 1 if claim.expected == "higher" else -1
    if corrected <= LEVEL:
        return "holds" if sign * found.mean > 0 else "reversed"
    if max(abs(found.low), abs(found.high)) < claim.smallest_effect:
        return "smaller than of interest"
    return "not shown"
