"""Claims of `bench/evidence`: complete, committed before their runs, and judged as announced."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import arms
import claims
import controls
import numpy as np
import pilot
import pytest
import records
import report
import scores
import studies
from claims import Claim
from records import Records, Run

from agentrl_core import stats

PAPERS = Path(__file__).parents[1] / "recipes" / "papers"
NAMES = [path.stem for path in sorted(claims.FOLDER.glob("*.toml"))]


def need_history() -> None:
    """Skip if the history is missing: a copy without git, or a shallow clone."""
    try:
        shallow = records.git("rev-parse", "--is-shallow-repository").strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this is not a git clone")
    if shallow == "true":
        pytest.skip("this clone has no history")


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_complete(name: str) -> None:
    claim = claims.load(name)
    assert (PAPERS / f"{claim.paper}.toml").is_file()
    assert claim.claim.endswith(".")
    assert claim.differ.endswith(".")
    assert len(claim.runs()) == 2 * claim.seeds * len(claim.worlds)
    assert not set(pilot.SEEDS) & {run.seed for run in claim.runs()}


def test_there_are_few() -> None:
    assert 8 <= len(NAMES) <= 16, "each further claim costs the others power, by Holm's correction"


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_was_committed_before_its_runs(name: str) -> None:
    need_history()
    claim = claims.load(name)
    study = records.study(f"claims/{name}")
    commit = claims.commit_of(claim)
    for record in study:
        assert record["claim"] == claim.digest, "the claim's file is not the one that was run"
        assert claims.is_ancestor(commit, record["commit"]), record["commit"]
        assert "changes" not in record


def test_a_later_commit_is_not_an_ancestor() -> None:
    need_history()
    head, before = (records.git("rev-parse", name).strip() for name in ("HEAD", "HEAD~1"))
    assert claims.is_ancestor(before, head)
    assert claims.is_ancestor(head, head)
    assert not claims.is_ancestor(head, before)
    assert not claims.is_ancestor(head, "0" * 40), "a commit that is not there"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worlds": ("nowhere",)}, "worlds: 'nowhere'"),
        ({"worlds": ()}, "name at least one"),
        ({"metric": "best"}, "metric: 'best'"),
        ({"expected": "better"}, "write higher or lower"),
        ({"seeds": 5}, "take at least 6"),
        ({"smallest_effect": 0.0}, "above 0"),
        ({"detectable_effect": -1.0}, "of the pilot"),
        ({"tuning": {"treatment": 0}}, "each arm"),
        ({"baseline": "gigpo_credit"}, "name another arm"),
    ],
)
def test_a_claim_with_a_mistake_is_refused(change: dict[str, Any], message: str) -> None:
    claim = replace(claims.load(NAMES[0]), treatment="gigpo_credit", baseline="grpo")
    with pytest.raises(ValueError, match=message):
        replace(claim, **change)


def test_an_arm_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match=r"arms\.ARMS"):
        replace(claims.load(NAMES[0]), treatment="nothing")


def test_a_field_too_many_or_too_few_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (claims.FOLDER / f"{NAMES[0]}.toml").read_text()
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    (tmp_path / "more.toml").write_text(text + "\n")
    assert claims.load("more").name == "more"
    (tmp_path / "more.toml").write_text('colour = "red"\n' + text)
    with pytest.raises(ValueError, match="colour is unknown"):
        claims.load("more")
    (tmp_path / "less.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith("metric")))
    with pytest.raises(ValueError, match="metric is missing"):
        claims.load("less")


def test_a_claim_without_a_detectable_effect_or_a_commit_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_history()
    text = (claims.FOLDER / f"{NAMES[0]}.toml").read_text()
    head, _, _ = text.partition("detectable_effect")
    rest = "seeds = 10\ntuning = { treatment = 0, baseline = 0 }\n"
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    monkeypatch.setattr(records, "ROOT", claims.FOLDER)
    (tmp_path / "new.toml").write_text(f"{head}detectable_effect = 0\n{rest}")
    with pytest.raises(ValueError, match="run the pilot"):
        studies.plan("new")
    (tmp_path / "new.toml").write_text(f"{head}detectable_effect = 0.1\n{rest}")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    records.git("init", "--quiet")
    records.git(*identity, "commit", "--quiet", "--allow-empty", "--message", "a")
    with pytest.raises(ValueError, match="not committed"):
        studies.plan("new")
    records.git("add", "new.toml")
    records.git(*identity, "commit", "--quiet", "--message", "a")
    runs, more = studies.plan("new")
    assert runs == claims.load("new").runs()
    assert more == {"claim": claims.load("new").digest}
    (tmp_path / "new.toml").write_text(f"{head}detectable_effect = 0.2\n{rest}")
    with pytest.raises(ValueError, match="not committed"):
        studies.plan("new")


def test_the_spread_of_equal_arms_by_hand(tmp_path: Path) -> None:
    study = Records(tmp_path / "x.jsonl")
    for seed, difference in zip(pilot.SEEDS, (0.1, -0.2, 0.2), strict=True):
        assert pilot.spread(study, ("chain",), "final") is None
        study.add(*record("grpo", seed, [0.0, 0.5 + difference, 0.5 + difference]))
        study.add(*record("grpo+1", seed, [0.0, 0.5, 0.5]))
    assert pilot.spread(study, ("chain",), "final") == pytest.approx((0.09 / 3) ** 0.5)
    assert pilot.spread(study, ("chain", "chain"), "final") == pytest.approx((2 * 0.09 / 3) ** 0.5 / 2)
    assert pilot.spread(study, ("chain", "quest"), "final") is None


def test_a_study_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="pilot, controls, screening"):
        studies.plan("nothing")


def record(arm: str, seed: int, success: list[float], start: str = "a") -> tuple[Run, dict[str, Any]]:
    curve = [[100 * number, value, 5.0, 20.0 - number] for number, value in enumerate(success)]
    return Run("chain", arm, seed), {"status": "done", "curve": curve, "start": start}


def test_scores_by_hand() -> None:
    _, fields = record("grpo", 0, [0.2, 0.4, 0.8])
    assert scores.score(fields, "final") == pytest.approx(0.6)
    assert scores.score(fields, "area") == pytest.approx((0.3 + 0.6) / 2)
    assert scores.score(fields, "turns") == 5.0
    assert scores.score(fields, "tokens") == 18.0
    assert scores.gain(fields) == pytest.approx(0.4)


def test_pairs_are_of_equal_seeds_and_starts(tmp_path: Path) -> None:
    study = Records(tmp_path / "x.jsonl")
    for seed in range(6):
        study.add(*record("a", seed, [0.0, 0.5 + seed / 100, 0.5]))
        study.add(*record("b", seed, [0.0, 0.3, 0.3]))
    study.add(*record("a", 6, [0.0, 0.9, 0.9]))
    study.add(Run("chain", "b", 6), {"status": "failed", "error": "x"})
    pairs = scores.paired(study, ("chain",), "a", "b", range(10), "final")
    assert pairs is not None
    assert pairs.pairs == 6
    assert pairs.mean == pytest.approx(0.2 + np.mean(np.arange(6)) / 200)
    assert pairs.p_value == 2 / 2**6
    assert scores.paired(study, ("quest",), "a", "b", range(10), "final") is None
    study.add(*record("b", 7, [0.0, 0.3, 0.3], start="other"))
    study.add(*record("a", 7, [0.0, 0.3, 0.3]))
    with pytest.raises(ValueError, match="other weights"):
        scores.paired(study, ("chain",), "a", "b", range(10), "final")


def test_verdicts() -> None:
    claim = replace(claims.load(NAMES[0]), expected="higher", smallest_effect=0.05)

    def difference(mean: float, width: float) -> stats.PairedDifference:
        return stats.PairedDifference(mean, mean - width, mean + width, 0.01, 10)

    assert claims.verdict(claim, difference(0.2, 0.1), 0.01) == "holds"
    assert claims.verdict(claim, difference(-0.2, 0.1), 0.01) == "reversed"
    assert claims.verdict(replace(claim, expected="lower"), difference(-0.2, 0.1), 0.01) == "holds"
    assert claims.verdict(claim, difference(0.01, 0.03), 0.4) == "smaller than of interest"
    assert claims.verdict(claim, difference(0.01, 0.06), 0.4) == "not shown"


def test_controls_pass_in_their_direction_alone(tmp_path: Path) -> None:
    negated = controls.controls()[0]
    assert (negated.first, negated.expected) == ("grpo_negated", "lower")
    study = Records(tmp_path / "x.jsonl")
    for seed in controls.SEEDS:
        assert not controls.outcomes(study), "a control is judged when all its pairs are there"
        study.add(*record("grpo_negated", seed, [0.2, 0.1, 0.1]))
        study.add(*record("grpo", seed, [0.2, 0.5, 0.5]))
    [(control, pairs)] = controls.outcomes(study).items()
    assert control == negated
    assert controls.passed(control, pairs)
    assert not controls.passed(control._replace(expected="higher"), pairs)
    equal = [each for each in controls.controls() if each.expected == "equal"]
    arms = [arm for each in equal for arm in (each.first, each.second)]
    assert len(equal) == controls.COMPARISONS
    assert len(set(arms)) == len(arms), "no run is in two comparisons"


def test_screening_verdicts() -> None:
    def runs(*after: float) -> list[dict[str, Any]]:
        return [record("x", seed, [0.2, value, value])[1] for seed, value in enumerate(after)]

    assert report.screening_verdict(runs(0.3, 0.3, 0.3)) == "improves"
    assert report.screening_verdict(runs(0.9, 0.9, 0.1)) == "does not"
    assert report.screening_verdict(runs(0.22, 0.22, 0.22)) == "does not"
    assert report.screening_verdict(runs(0.3)) == "improves (1 of 3 seeds)"
    assert report.screening_verdict([*runs(0.3, 0.3), {"status": "failed"}]) == "failed"
    assert report.screening_verdict([{"status": "refused"}]) == "refused"


def test_multi_step_arms_that_do_not_improve_rerun_at_a_lower_learning_rate() -> None:
    results = [
        {**record(arm, seed, [0.2, final, final])[1], "world": "chain", "arm": arm, "seed": seed}
        for arm, final in (("cispo", 0.1), ("dapo", 0.6), ("grpo", 0.1))  # grpo takes one step a batch
        for seed in pilot.SEEDS
    ]
    assert studies._slow(results) == [Run("chain", "cispo@slow", seed) for seed in pilot.SEEDS]
    assert arms.arm("cispo@slow").learning_rate == arms.arm("cispo").learning_rate / 4


def test_recipes_with_many_steps_that_do_not_improve_run_at_a_sixty_fourth_of_the_rate() -> None:
    slow = [
        {**record(arm, seed, [0.2, final, final])[1], "world": "chain", "arm": arm, "seed": seed}
        for arm, final in (
            ("fix_po@slow", 0.1),
            ("fix_po@slow@slow@slow", 0.6),  # its own result does not remove it from the plan
            ("props@slow", 0.6),
            ("cispo@slow", 0.1),  # 16 steps a batch
        )
        for seed in pilot.SEEDS
    ]
    assert studies._slowest(slow) == [Run("chain", "fix_po@slow@slow@slow", seed) for seed in pilot.SEEDS]
    assert arms.arm("fix_po@slow@slow@slow").learning_rate == arms.arm("fix_po").learning_rate / 64


def test_the_page_matches_the_records() -> None:
    assert report.page() == report.PAGE.read_text(encoding="utf-8"), "run: python bench/evidence/report.py"


def test_claims_and_records_are_of_arms_that_are_there() -> None:
    for claim in claims.all_claims():
        assert isinstance(claim, Claim)
        known = set(claim.runs())
        for line in records.study(f"claims/{claim.name}"):
            assert Run(line["world"], line["arm"], line["seed"]) in known
