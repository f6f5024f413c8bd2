"""The catalogue of recipes, made from their files: a table, a page for each, and the count of what is proved.

`python docs/catalogue.py table` writes docs/recipes.md; `pages FOLDER` an index by phase and a page per system; `count`
prints for each system whether it runs, what its numbers are checked against, and which facts it needs.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from agentrl_core import recipes
from agentrl_core.cli._page import RecipePage
from agentrl_core.component.component import PHASES

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "recipes.md"
TESTS = ROOT / "tests" / "recipes"
HEAD = """# Recipes

Published systems, what each decides in each phase where that is not the default, and what it needs beside a policy.
`agentrl recipes show NAME` has the page of one, `make catalogue` makes all pages in `target/catalogue`. Made from the
files by `make catalogue`: change those.
"""


def pages() -> list[RecipePage]:
    """The pages of all recipes."""
    return [RecipePage.of(name) for name in recipes.names()]


def cases() -> dict[str, list[dict[str, str]]]:
    """The case files of each recipe: what each checks and where its numbers are from."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in recipes.names()}
    for path in sorted((TESTS / "cases").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        found[table["recipe"]].append({"file": path.name, "checks": table["checks"], "from": table["from"]})
    return found


def reasons() -> dict[str, str]:
    """Why a recipe does not run; all others are run by tests/recipes/test_loops.py."""
    return tomllib.loads((TESTS / "not_running.toml").read_text(encoding="utf-8"))


def facts(page: RecipePage) -> str:
    """The facts that it needs; those that are numbered as one."""
    names = dict.fromkeys(name if not tail.isdigit() else f"{name}.*" for name, tail in map(_parted, page.facts))
    return ", ".join(names)


def _parted(column: object) -> tuple[str, str]:
    name = str(getattr(column, "name", ""))
    head, _, tail = name.rpartition(".")
    return (head, tail) if tail.isdigit() else (name, "")


def row(cells: list[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(found: list[RecipePage]) -> str:
    """The comparison of all systems."""
    names = ["recipe", *PHASES, "facts", "models"]
    lines = [HEAD, f"\n{len(found)} systems.\n\n", row(names), row(["---"] * len(names))]
    for page in found:
        decided = [f"`{page.phases[phase]}`" if phase in page.phases else "" for phase in PHASES]
        others = ", ".join(name for name in page.models if name != "policy")
        lines.append(row([f"**{page.recipe.name}**<br>{page.recipe.source}", *decided, facts(page), others]))
    return "".join(lines)


def page_text(page: RecipePage, tested: list[dict[str, str]]) -> str:
    """The page of a system."""
    name = page.recipe.name
    own = TESTS / f"test_{name}.py"
    checked = "".join(
        f"- `tests/recipes/cases/{case['file']}`: {case['checks']} ({case['from']}).\n" for case in tested
    )
    checked += f"- `tests/recipes/{own.name}`.\n" if own.is_file() else ""
    why = reasons().get(name)
    runs = f"It does not run: {why}\n" if why else "- It runs, is cut off and goes on: `tests/recipes/test_loops.py`.\n"
    decided = "".join(f"- {phase}: `{said}`\n" for phase, said in page.phases.items())
    needed = (
        f"- facts: {facts(page) or 'none'}\n- models: {', '.join(page.models)}; trained: {', '.join(page.trained)}\n"
    )
    differs = f"## How it differs\n\n{page.differs}\n\n" if page.differs else ""
    return (
        f"# {name}\n\nSource: {page.recipe.source}\n\n{page.text}\n\n## What it decides\n\n{decided}\n"
        f"## What it needs\n\n{needed}\n{differs}## How it was tested\n\n{runs}{checked}\n"
        f"## As TOML\n\n```toml\n{page.recipe.to_toml()}```\n"
    )


def index(found: list[RecipePage]) -> str:
    """The systems by the phase in which they decide something."""
    lines = ["# Systems by phase\n"]
    for phase in PHASES:
        here = [page for page in found if phase in page.phases]
        lines.append(f"\n## {phase}\n\n")
        lines += [f"- [{page.recipe.name}]({page.recipe.name}.md): {page.purpose}\n" for page in here]
    return "".join(lines)


def write_pages(folder: Path) -> int:
    """Write the index and all pages; how many."""
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
        ]
    )


def main(arguments: list[str]) -> None:
    """Do what is asked for."""
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
