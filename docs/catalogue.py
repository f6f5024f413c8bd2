"""Generate the catalogue of recipes from their files: docs/recipes.md, a page for each recipe, and a count.

`python docs/catalogue.py table` writes docs/recipes.md; `pages FOLDER` writes an index by phase and a page per system;
`count` prints for each system whether it runs, the source of the numbers it is checked against, and the facts it needs;
then how many equations of the paper files have an example that runs, and which kinds of sources were read.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from agentrl_core import recipes
from agentrl_core.cli._recipe_page import RecipePage
from agentrl_core.component.component import PHASES

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "recipes.md"
TESTS = ROOT / "tests" / "recipes"
EVIDENCE = ROOT / "docs" / "evidence.md"
CLAIMS = ROOT / "bench" / "evidence" / "claims"
HEAD = """# Catalogue of recipes

To train with a published system, pick a recipe below and use it in your loop (`recipes.GIGPO`) or run
`agentrl train --recipe gigpo`. Its name links to its formula, settings and differences from the paper, which
`agentrl recipes show gigpo` prints too.

Each recipe is in one group, by its most specific phase. The column *phases* has every phase in which it differs from
the defaults, a group-relative advantage and a clipped policy loss. The column *needs* has the facts that the
environment must supply and the models beside the policy. On the site, type words to filter the rows; in a terminal,
use `agentrl recipes --phase replay --needs reference`. `make catalogue` generates this page from the files of the
recipes.

<div id="filter"></div>
"""
GROUPS = {
    "": "Defaults",
    "advantage": "Advantages",
    "loss": "Losses",
    "weight": "Weights and masks of draws and tokens",
    "reward": "Scores",
    "select": "Selection of tasks",
    "admit": "Selection of groups for the batch",
    "rollout": "Rollout programs: branching, search, hints, self-play",
    "replay": "Replay of stored rollouts",
    "hooks": "Actions on models, rates and passes",
}
"""The headings of the table, by phase. A recipe is in the last group whose phase it changes."""

STRENGTH = ("paper", "code", "notes", "abstract")
"""Kinds of sources of a paper file, from the strongest."""

DEFAULTS = ("GroupRelative()", "Policy()")
SOURCE = re.compile(r" \(arXiv:[\d.]+\)|, arXiv:[\d.]+(?=\))")


def pages() -> list[RecipePage]:
    """The pages of all recipes."""
    return [RecipePage.of(name) for name in recipes.names()]


def cases() -> dict[str, list[dict[str, str]]]:
    """The case files of each recipe: the purpose of each, and the source of its numbers."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in recipes.names()}
    for path in sorted((TESTS / "cases").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        found[table["recipe"]].append({"file": path.name, "checks": table["checks"], "from": table["from"]})
    return found


def reasons() -> dict[str, str]:
    """The reasons of recipes that do not run; tests/recipes/test_loops.py runs all others."""
    return tomllib.loads((TESTS / "not_running.toml").read_text(encoding="utf-8"))


def facts(page: RecipePage) -> str:
    """The facts that a recipe needs; numbered ones as one."""
    names = dict.fromkeys(name if not tail.isdigit() else f"{name}.*" for name, tail in map(_parted, page.facts))
    return ", ".join(names)


def _parted(column: object) -> tuple[str, str]:
    name = str(getattr(column, "name", ""))
    head, _, tail = name.rpartition(".")
    return (head, tail) if tail.isdigit() else (name, "")


def row(cells: list[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def link(name: str) -> str:
    """A link to the source file of a recipe; on the site it leads to the page of the recipe (`made_pages.py`)."""
    return f"[**{name}**](../python/agentrl_core/recipes/{name}.py)"


def purpose(page: RecipePage) -> str:
    """The purpose in one sentence, without the source."""
    return SOURCE.sub("", page.purpose)


def changed(page: RecipePage) -> list[str]:
    """The phases in which a recipe differs from the defaults."""
    return [phase for phase in PHASES if page.phases.get(phase, DEFAULTS[0]) not in DEFAULTS]


def table(found: list[RecipePage]) -> str:
    """The catalogue: a line for each system, in groups."""
    groups: dict[str, list[RecipePage]] = {phase: [] for phase in GROUPS}
    for page in found:
        phases = changed(page)
        groups[[phase for phase in GROUPS if not phase or phase in phases][-1]].append(page)
    lines = [HEAD, f"\n{len(found)} recipes.\n"]
    for phase, pages in groups.items():
        lines.append(f"\n## {GROUPS[phase]}\n\n")
        names = ["recipe", "purpose", "phases", "needs", "source"]
        lines += [row(names), row(["---"] * len(names))]
        for page in pages:
            models = ", ".join(name for name in page.models if name != "policy")
            needs = ", ".join(filter(None, [facts(page), models]))
            cells = [link(page.recipe.name), purpose(page), ", ".join(changed(page)), needs, page.recipe.source]
            lines.append(row(cells))
    return "".join(lines)


def evidence(name: str, page: str) -> str:
    """The rows of `docs/evidence.md` about a recipe as a list: claims of its paper, and its screening."""
    lines, head = [], list[str]()
    claims = {path.stem for path in CLAIMS.glob("*.toml") if _paper(path) == name}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")]
        subject = cells[0].partition("]")[0].removeprefix("[")
        if cells[0] in ("claim", "recipe"):
            head = cells
        elif head[:1] == ["claim"] and subject in claims:
            row_of = dict(zip(head, cells, strict=True))
            shown = f"{row_of['sentence']} **{row_of['verdict']}** {row_of['treatment - baseline']}".rstrip()
            lines.append(f"[Claim {subject}](../evidence.md#claims), in {row_of['worlds']}: {shown}")
        elif head[:1] == ["recipe"] and subject == name:
            shown = "; ".join(f"{title} {cell}" for title, cell in zip(head[1:], cells[1:], strict=True) if cell)
            lines.append(f"[Screening](../evidence.md#screening), {shown}")
        elif not line.startswith("|"):
            head = []
    return "".join(f"- {line}\n" for line in lines)


def _paper(claim: Path) -> str:
    return str(tomllib.loads(claim.read_text(encoding="utf-8"))["paper"])


def page_text(page: RecipePage, tested: list[dict[str, str]]) -> str:
    """The page of a system; its first line is the purpose."""
    name = page.recipe.name
    own = TESTS / f"test_{name}.py"
    checked = "".join(
        f"- `tests/recipes/cases/{case['file']}`: {case['checks']} ({case['from']}).\n" for case in tested
    )
    checked += f"- `tests/recipes/{own.name}`.\n" if own.is_file() else ""
    why = reasons().get(name)
    runs = (
        f"It does not run: {why}\n"
        if why
        else "- It runs, is interrupted and resumes: `tests/recipes/test_loops.py`.\n"
    )
    decided = "".join(f"- {phase}: `{links}`\n" for phase, links in page.phases.items())
    needed = (
        f"- facts: {facts(page) or 'none'}\n- models: {', '.join(page.models)}; trained: {', '.join(page.trained)}\n"
    )
    equations = f"## Equations\n\n{page.section('Equations')}\n\n" if page.equations else ""
    differs = f"## Differences\n\n{page.differs}\n\n" if page.differs else ""
    rows = evidence(name, EVIDENCE.read_text(encoding="utf-8"))
    shown = f"## Evidence\n\n{rows}\n" if rows else ""
    return (
        f"# {name}\n\n{purpose(page)}\n\nSource: {page.recipe.source}\n\n{page.prose}\n\n{equations}{differs}"
        f"## Settings by phase\n\n{decided}\n## Needs\n\n{needed}\n{shown}## Tests\n\n{runs}{checked}\n"
        f"## As TOML\n\n```toml\n{page.recipe.to_toml()}```\n"
    )


def index(found: list[RecipePage]) -> str:
    """The systems by phase; a system is listed under every phase that it sets."""
    lines = ["# Recipes by phase\n\nEach recipe is listed under every phase that it sets.\n"]
    for phase in PHASES:
        here = [page for page in found if phase in page.phases]
        lines.append(f"\n## {phase}\n\n")
        lines += [f"- [{page.recipe.name}]({page.recipe.name}.md): {purpose(page)}\n" for page in here]
    return "".join(lines)


def write_pages(folder: Path) -> int:
    """Write the index and all pages; return the number of recipes."""
    folder.mkdir(parents=True, exist_ok=True)
    found, tested = pages(), cases()
    (folder / "index.md").write_text(index(found), encoding="utf-8")
    for page in found:
        (folder / f"{page.recipe.name}.md").write_text(page_text(page, tested[page.recipe.name]), encoding="utf-8")
    return len(found)


def count() -> str:
    """A line for each system, and a summary."""
    tested, refused = cases(), reasons()
    lines, running, numbers, own_tests = [], 0, 0, 0
    for page in pages():
        name = page.recipe.name
        own = (TESTS / f"test_{name}.py").is_file()
        running, numbers = running + (name not in refused), numbers + bool(tested[name])
        own_tests += own and not tested[name]
        against = "; ".join(dict.fromkeys(case["from"] for case in tested[name]))
        against = against or (f"test_{name}.py" if own else "-")
        runs = refused.get(name, "runs")
        lines.append(f"{name:30} {runs:6} {facts(page) or '-':40} {against}")
    total, files = len(lines), sum(map(len, tested.values()))
    summary = (
        f"{total} systems: {running} run from rollouts to optimizer steps, {numbers} have numbers of their formula as "
        f"cases ({files} files), {own_tests} more a test of their own, {total - numbers - own_tests} neither"
    )
    return "\n".join(
        [
            f"{'system':30} {'runs':6} {'facts needed':40} numbers checked against",
            *lines,
            summary,
            *equations(),
        ]
    )


def equations() -> list[str]:
    """Lines on the comparison with papers: equations with an example, left out, and sources by kind."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from comparisons import Comparison, papers

    found, without = [], []
    for name in papers():
        try:
            found.append(Comparison.of(name))
        except KeyError:
            without.append(name)
    compared = [each for each in found if not each.problems()]
    numbers = computed = left_out = stated = 0
    for each in compared:
        for number in each.numbers:
            numbers += 1
            with_case, entry = number in each.computed, each.entries[number]
            computed += with_case
            left_out += bool(entry.left_out) and not with_case
            stated += not entry.left_out and not with_case
    kinds = Counter(source["what"] for each in found for source in each.paper.table["read"])
    strongest = Counter(
        min((source["what"] for source in each.paper.table["read"]), key=STRENGTH.index) for each in found
    )
    rest = len(recipes.names()) - len(found)
    return [
        (
            f"{len(recipes.names())} recipes: {len(compared)} compared with a paper file, {len(found) - len(compared)} "
            f"have one and are not compared yet, {rest} have none; {len(without)} paper files have no recipe"
        ),
        (
            f"{numbers} equations of the compared: {computed} have a worked example that runs, {left_out} are left "
            f"out with a reason, {stated} are computed by a part that no example runs"
        ),
        "sources of paper files with a recipe: " + ", ".join(f"{kinds[kind]} {kind}" for kind in STRENGTH),
        "strongest source of each: " + ", ".join(f"{strongest[kind]} {kind}" for kind in STRENGTH),
    ]


def main(arguments: list[str]) -> None:
    """Run the command in the arguments."""
    if arguments == ["table"]:
        TABLE.write_text(table(pages()), encoding="utf-8")
    elif len(arguments) == 2 and arguments[0] == "pages":
        sys.stdout.write(f"{write_pages(Path(arguments[1]))} pages in {arguments[1]}\n")
    elif arguments == ["count"]:
        sys.stdout.write(count() + "\n")
    else:
        sys.exit("python docs/catalogue.py table | pages FOLDER | count")


if __name__ == "__main__":
    main(sys.argv[1:])
