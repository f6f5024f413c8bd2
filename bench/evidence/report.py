"""Write `docs/evidence.md` and its pictures from the records.

    python bench/evidence/report.py

The text of the page is in `page.md` beside this file; this program fills in the tables.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import arms
import causes
import claims
import controls
import numpy as np
import pilot
import records
import studies
from claims import Claim
from records import Records
from scores import METRICS, gain, improves, score
from worlds import WORLDS

from agentrl_core import stats

PAGE = records.ROOT / "docs" / "evidence.md"
IMAGES = records.ROOT / "docs" / "images"


def page() -> str:
    """Return the page."""
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    return Template(text).substitute(
        worlds=worlds_table(records.study("pilot")),
        controls=controls_table(records.study("controls")),
        claims=claims_table(),
        warm_starts=warm_starts(records.study("screening")),
        screening_summary=screening_summary(records.study("screening"), records.study("screening_slow")),
        causes=causes_table(records.study("screening")),
        kinds=table(("cause", "meaning", "recipes"), causes.kind_rows(unimproved(records.study("screening")))),
        refusals=table(
            ("the loop or the worlds lack", "recipes", "names"),
            causes.refusal_rows(causes.refused(records.study("screening"))),
        ),
        screening=screening_table(records.study("screening"), records.study("screening_slow")),
        metrics="\n".join(f"- `{name}`: {text}." for name, text in METRICS.items()),
        spent=spent_table(),
        planned=planned_rows(records.study("pilot")),
        claims_picture=_picture("claims", "Differences of the claims with their intervals"),
        screening_picture=_picture("screening", "Mean gains of all recipes over their warm starts"),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def worlds_table(study: Records) -> str:
    """Return the pilot's findings in each world."""
    rows, factor = [], stats.detectable_effect(len(controls.SEEDS))
    for name, world in WORLDS.items():
        runs = [each for each in study if each["world"] == name and each["status"] == "done"]
        if not runs:
            continue
        before = [each["curve"][0][1] for each in runs]
        after = [score(each, "final") for each in runs]
        spreads = [pilot.spread(study, (name,), metric) for metric in ("final", "area")]
        cells = ["" if each is None else f"{each:.3f}, {factor * each:.3f}" for each in spreads]
        rows.append(
            (
                name,
                f"{world.budget:,}".replace(",", " "),
                _range(before),
                _range(after),
                f"{statistics.mean(each['iterations'] for each in runs):.0f}",
                f"{statistics.mean(each['cpu_s'] for each in runs):.0f}",
                str(len(runs)),
                *cells,
            )
        )
    head = (
        "world",
        "tokens",
        "warm start",
        "GRPO",
        "iterations",
        "CPU s",
        "runs",
        "final: sd, detectable",
        "area: sd, detectable",
    )
    return table(head, rows)


def controls_table(study: Records) -> str:
    """Return the outcome of each control that is complete, A/A comparisons as one row."""
    outcomes, rows = controls.outcomes(study), []
    for control, pairs in outcomes.items():
        if control.expected != "equal":
            verdict = "passes" if controls.passed(control, pairs) else "FAILS"
            rows.append((control.name, control.world, control.expected, *_difference(pairs), verdict))
    equal = [pairs for control, pairs in outcomes.items() if control.expected == "equal"]
    rejected = sum(pairs.p_value <= controls.LEVEL for pairs in equal)
    if not equal:
        verdict = "not run"
    elif rejected > controls.MOST_REJECTED:
        verdict = "FAILS"
    else:
        verdict = "passes" if len(equal) == controls.COMPARISONS else "passes so far"
    outcome = f"{rejected} of {len(equal)} rejected"
    rows.append((f"{controls.COMPARISONS} A/A", "both", f"at most {controls.MOST_REJECTED}", outcome, "", "", verdict))
    return table(("control", "world", "expected", "difference", "p", "pairs", "outcome"), rows)


def claims_table() -> str:
    """Return the outcome of each claim."""
    rows = []
    for claim, pairs, corrected in claim_outcomes():
        cells = ("", "", "") if pairs is None else _difference(pairs)
        pair_count = 0 if pairs is None else pairs.pairs
        verdict = (
            f"{pair_count} of {claim.seeds} pairs"
            if pair_count < claim.seeds
            else claims.verdict(claim, pairs, corrected)
        )
        rows.append(
            (
                f"[{claim.name}]({_source(claim)})",
                claim.claim,
                ", ".join(claim.worlds),
                f"{claim.metric}, {claim.expected}",
                cells[0],
                cells[1],
                f"{corrected:.3g}" if pair_count == claim.seeds else "",
                f"{claim.detectable_effect:g}" if claim.detectable_effect else "",
                verdict,
            )
        )
    head = ("claim", "sentence", "worlds", "expected", "treatment - baseline", "p", "Holm", "detectable", "verdict")
    return table(head, rows)


def claim_outcomes() -> list[tuple[Claim, Any, float]]:
    """Return each claim with its difference and its corrected p-value; a claim that is not complete counts as p = 1."""
    outcomes = [(claim, claim.outcome(records.study(f"claims/{claim.name}"))) for claim in claims.all_claims()]
    if not outcomes:
        return []
    complete = [1.0 if pairs is None or pairs.pairs < claim.seeds else pairs.p_value for claim, pairs in outcomes]
    corrected = stats.holm(complete)
    return [(claim, pairs, float(value)) for (claim, pairs), value in zip(outcomes, corrected, strict=True)]


def screened(study: Records) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the records of a screening by recipe and world."""
    sorted_out: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(study, key=lambda each: (each["arm"], each["seed"])):
        sorted_out[record["arm"]][record["world"]].append(record)
    return sorted_out


def screening_verdict(runs: Sequence[dict[str, Any]]) -> str:
    """Return whether a recipe improves on its warm start in a world."""
    for status in ("refused", "failed"):
        if any(each["status"] == status for each in runs):
            return status
    few = "" if len(runs) == len(pilot.SEEDS) else f" ({len(runs)} of {len(pilot.SEEDS)} seeds)"
    return ("improves" if improves(runs) else "does not") + few


def screening_summary(study: Records, slow: Records) -> str:
    """Return the number of recipes with each verdict, by world, and of those that improve at the slow rate."""
    rows, slowly = [], screened(slow)
    for world in studies.SCREENED:
        of_world = {name: screening_verdict(of[world]) for name, of in screened(study).items() if world in of}
        verdicts = [each.partition(" (")[0] for each in of_world.values()]
        counts = [verdicts.count(each) for each in ("improves", "does not", "failed", "refused")]
        partly = sum(
            verdict.startswith("does not") and loses_from_weakest_alone(screened(study)[name][world])
            for name, verdict in of_world.items()
        )
        again = []
        for rate in studies.SLOW_RATES:
            improved = [
                screening_verdict(slowly[name + rate][world]).startswith("improves")
                for name, verdict in of_world.items()
                if verdict.startswith("does not") and slowly[name + rate][world]
            ]
            again.append(f"{sum(improved)} of {len(improved)}")
        rows.append((world, *counts, len(verdicts), partly, *again))
    head = ("world", "improve", "do not", "fail", "refused", "in all", "lose from the weakest start alone")
    return table((*head, *(f"improve at {words}" for words in studies.SLOW_RATES.values())), rows)


def loses_from_weakest_alone(runs: Sequence[dict[str, Any]]) -> bool:
    """Return whether a recipe gains from all warm starts but the one that solves the least."""
    first, *others = sorted(runs, key=lambda run: run["curve"][0][1])
    return gain(first) <= 0 < min(gain(run) for run in others)


def warm_starts(study: Records) -> str:
    """Return the held-out success of the screening's warm starts, by seed."""
    solved = {run["seed"]: run["curve"][0][1] for run in study if run["status"] == "done"}
    return ", ".join(f"{solved[seed]:.2f}" for seed in sorted(solved))


def unimproved(study: Records) -> list[str]:
    """Return the recipes that fail or do not improve in a world."""
    return [
        name
        for name, of in screened(study).items()
        if any(screening_verdict(runs).startswith(("does not", "failed")) for runs in of.values())
    ]


def causes_table(study: Records) -> str:
    """Return the cause of each recipe that does not improve."""
    rows = causes.cause_rows(unimproved(study))
    return table(("recipe", "cause", "evidence"), [(f"[{name}](catalogue/{name}.md)", *rest) for name, *rest in rows])


def screening_table(study: Records, slow: Records) -> str:
    """Return a row for each recipe that was run."""
    rows, slowly = [], screened(slow)
    for name, of in screened(study).items():
        cells: list[str] = []
        for world in studies.SCREENED:
            runs = of.get(world, [])
            if not runs:
                cells += ["", ""]
                continue
            verdict = screening_verdict(runs)
            why = next((each["error"] for each in runs if "error" in each), "")
            rates = studies.SLOW_RATES if verdict.startswith("does not") else {}
            for rate, words in rates.items():
                if again := slowly[name + rate][world]:
                    verdict += f"; at {words} {_gains(again)}: {screening_verdict(again)}"
            cells += [_gains(runs) or _cell(why), verdict]
        rows.append((f"[{name}](catalogue/{name}.md)", *cells))
    head = ["recipe"]
    for world in studies.SCREENED:
        head += [f"{world}: gain of each seed", f"{world}: verdict"]
    return table(head, rows)


def _gains(runs: Sequence[dict[str, Any]]) -> str:
    """Return the gain of each finished run."""
    return ", ".join(f"{gain(each):+.2f}" for each in runs if each["status"] == "done")


def spent_table() -> str:
    """Return the cost of each study so far."""
    rows = []
    names = [*studies.ALONE, *(f"claims/{claim.name}" for claim in claims.all_claims())]
    for name in names:
        runs = list(records.study(name))
        seconds = sum(each.get("cpu_s", 0.0) for each in runs)
        rows.append((name, len(runs), sum(each["status"] == "failed" for each in runs), f"{seconds / 3600:.2f}"))
    return table(("study", "records", "of them failed", "CPU hours"), rows)


def planned_rows(study: Records) -> str:
    """Return the estimated cost of each study, from the seconds of the pilot's runs."""
    finished_runs = [each for each in study if each["status"] == "done"]
    of_world: dict[str, list[float]] = defaultdict(list)
    for each in finished_runs:
        of_world[each["world"]].append(each["cpu_s"])
    usual = statistics.mean(each["cpu_s"] for each in finished_runs)
    seconds = {name: statistics.mean(of_world[name]) if of_world[name] else usual for name in WORLDS}
    plans = {name: studies.plan(name)[0] for name in ("pilot", "controls", "screening")}
    plans["claims"] = [run for claim in claims.all_claims() for run in claim.runs()]
    rows, total = [], 0.0
    for name, runs in plans.items():
        # A short arm has a quarter of the tokens.
        spent = sum(seconds[run.world] * arms.arm(run.arm).tokens for run in runs) / 3600
        total += spent
        rows.append((name, len(runs), f"{spent:.1f}"))
    rows.append(("in all", sum(len(runs) for runs in plans.values()), f"{total:.1f}"))
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def draw() -> None:
    """Write the forest plots."""
    from matplotlib.figure import Figure

    of_claims = {
        claim.name: stats.Estimate(*pairs[:3])
        for claim, pairs, _ in claim_outcomes()
        if pairs is not None and pairs.pairs == claim.seeds and claim.metric in ("final", "area")
    }
    of_controls = {
        f"{control.name} ({control.world})": stats.Estimate(*pairs[:3])
        for control, pairs in controls.outcomes(records.study("controls")).items()
    }
    for name, estimates in (("claims", of_claims), ("controls", of_controls)):
        if not estimates:
            continue
        figure = Figure(figsize=(7, 1 + 0.3 * len(estimates)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="0.8", linewidth=1)
        stats.plot_estimates(axes, estimates)
        axes.set_xlabel("difference in held-out success, 95 % interval")
        figure.savefig(IMAGES / f"evidence-{name}.png", dpi=80)
    screening = screened(records.study("screening"))
    if not screening:
        return
    figure = Figure(figsize=(7, 3), layout="constrained")
    all_axes = figure.subplots(1, len(studies.SCREENED), squeeze=False)[0]
    for axes, world in zip(all_axes, studies.SCREENED, strict=True):
        gains = [
            statistics.mean(gain(each) for each in of[world])
            for of in screening.values()
            if of.get(world) and all(each["status"] == "done" for each in of[world])
        ]
        axes.hist(gains, bins=np.linspace(-0.5, 1, 31), color="0.5")
        axes.axvline(0, color="C3", linewidth=1)
        axes.set_title(world)
        axes.set_xlabel("mean gain over the warm start")
    all_axes[0].set_ylabel("recipes")
    figure.savefig(IMAGES / "evidence-screening.png", dpi=80)


def _difference(pairs: stats.PairedDifference) -> tuple[str, str, str]:
    return f"{pairs.mean:+.3f} [{pairs.low:+.3f}, {pairs.high:+.3f}]", f"{pairs.p_value:.3g}", str(pairs.pairs)


def _range(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _picture(name: str, text: str) -> str:
    path = f"images/evidence-{name}.png"
    return f"![{text}]({path})" if (PAGE.parent / path).exists() else ""


def _source(claim: Claim) -> str:
    kind, _, number = claim.source.partition(":")
    return f"https://arxiv.org/abs/{number}" if kind == "arXiv" else claim.source


def _cell(text: str) -> str:
    return text.partition(";")[0].replace("|", "/")[:90]


def main() -> None:
    """Write the page and its existing pictures."""
    draw()
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(records.ROOT)}")


if __name__ == "__main__":
    main()
