"""`agentrl recipes`: list the recipes, show the page of one, or compare two."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from agentrl_core._util.near_names import near_names
from agentrl_core.cli._terminal import console, in_a_line, print_columns
from agentrl_core.component.component import PHASES
from agentrl_core.component.toml import toml_lines
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.cli._recipe_page import RecipePage

_CHANGED = tuple(PHASES)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `[show NAME | diff A B]` and the filters."""
    command.description = "List the recipes, show the page of one (show NAME), or compare two (diff A B)."
    command.epilog = (
        "examples:\n  agentrl recipes\n  agentrl recipes --phase replay\n  agentrl recipes --needs reference\n"
        "  agentrl recipes --needs-critic\n  agentrl recipes --facts\n  agentrl recipes --incomplete\n"
        "  agentrl recipes show arpo\n  agentrl recipes diff grpo mine.toml\n"
    )
    command.add_argument("do", nargs="?", choices=["show", "diff"], metavar="show|diff", help="omit to list")
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="names of recipes, or TOML files (their modules are not imported)"
    )
    command.add_argument("--phase", action="append", choices=_CHANGED, metavar="PHASE", help=_phase_help())
    command.add_argument(
        "--needs", action="append", default=[], metavar="NAME", help="recipes that need this model or fact"
    )
    command.add_argument("--needs-critic", action="store_true", help="same as --needs critic")
    command.add_argument(
        "--facts", action="store_true", help="recipes that need facts of the environment, with the facts"
    )
    command.add_argument(
        "--incomplete", action="store_true", help="recipes that leave out a part of their source, with the reasons"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def _phase_help() -> str:
    return f"recipes that change this phase: {', '.join(_CHANGED)}"


def run(
    *,
    do: str | None,
    names: list[str],
    phase: list[str] | None,
    needs: list[str],
    needs_critic: bool,
    facts: bool,
    incomplete: bool,
    json: bool,
) -> int:
    """Print the list of recipes, the page of one, or a comparison of two."""
    requirements = [*needs, *(["critic"] if needs_critic else [])]
    if do is not None and (phase or requirements or facts or incomplete):
        given = {"phase": phase, "needs": needs, "needs-critic": needs_critic, "facts": facts, "incomplete": incomplete}
        option = next(name for name, value in given.items() if value)
        raise InvalidInputError(f"recipes {do}: --{option} applies to the list only; omit it")
    if do == "show":
        _show(_wanted(do, names, 1)[0], json=json)
    elif do == "diff":
        _diff(*_wanted(do, names, 2), json=json)
    else:
        _list(phase or [], requirements, facts=facts, incomplete=incomplete, json=json)
    return 0


def _wanted(do: str, names: list[str], count: int) -> list[RecipePage]:
    from agentrl_core.cli._recipe_page import RecipePage

    if len(names) != count:
        remedy = "give one recipe or TOML file" if count == 1 else "give two recipes or TOML files"
        raise InvalidInputError(f"recipes {do}: the number of names is {len(names)}; {remedy}")
    return [RecipePage.of_file(name) if name.endswith(".toml") else RecipePage.of(name) for name in names]


def _list(phases: list[str], needs: list[str], *, facts: bool, incomplete: bool, json: bool) -> None:
    from agentrl_core import recipes
    from agentrl_core.cli._recipe_page import RecipePage

    pages = [RecipePage.of(name) for name in recipes.names()]
    known = sorted({name for page in pages for name in (*page.models, *(fact.name for fact in page.facts))})
    for name in needs:
        if name not in known:
            hint = near_names(name, known, f"give one of: {', '.join(known)}")
            raise InvalidInputError(f"--needs {name}: no recipe needs this; {hint}")
    matching = [
        page
        for page in pages
        if all(phase in page.phases for phase in phases)
        and all(name in (*page.models, *(fact.name for fact in page.facts)) for name in needs)
        and (page.facts or not facts)
        and (page.left_out or not incomplete)
    ]
    if json:
        _print_json([page.to_dict() for page in matching])
        return
    out = console()
    if incomplete:
        omissions = [[page.recipe.name, *entry] for page in matching for entry in page.left_out]
        print_columns(out, ["recipe", "left out", "why"], omissions, wrap_texts=True)
        compared = sum(bool(page.equations) for page in pages)
        out.print(f"{len(matching)} of {compared} recipes that were compared with their source leave something out")
        return
    names = ["recipe", "purpose", *(["facts"] if facts else []), *(phases or ["source"])]
    rows = []
    for page in matching:
        changes = [page.phases[phase] for phase in phases] or [page.recipe.source]
        fact_names = [", ".join(fact.name for fact in page.facts)] if facts else []
        purpose = page.purpose if phases else page.purpose.replace(f" ({page.recipe.source})", "")
        rows.append([page.recipe.name, purpose, *fact_names, *changes])
    print_columns(out, names, rows, wrap_texts=True)
    out.print(f"{len(matching)} of {len(pages)} recipes; agentrl recipes show NAME prints the page of one")


def _show(page: RecipePage, *, json: bool) -> None:
    if json:
        _print_json({**page.to_dict(), "text": page.text, "recipe": page.table})
        return
    out = console()
    facts = ", ".join(f"{fact.name} ({fact.level})" for fact in page.facts)
    parts = [
        f"{page.recipe.name}: {page.recipe.source or 'your own recipe'}",
        page.text,
        "Decides\n" + "\n".join(f"  {phase}: {change}" for phase, change in page.phases.items()),
        "\n".join(
            [
                "Needs",
                f"  facts of the environment: {facts or 'none'}",
                f"  models: {', '.join(page.models)}",
                f"  trains: {', '.join(page.trained) or 'nothing'}",
            ]
        ),
        "\n".join(toml_lines(page.table)),
    ]
    if page.others:
        names = ", ".join(page.others)
        parts.insert(-1, f"Components outside of agentrl_core, shown by name without their needs: {names}")
    for part in parts:
        if part:
            out.print("\n".join(map(in_a_line, part.splitlines())) + "\n", markup=False)


def _diff(one: RecipePage, other: RecipePage, *, json: bool) -> None:
    from agentrl_core.cli._recipe_page import differences

    rows = differences(one, other)
    if json:
        _print_json([dict(zip(("place", one.recipe.name, other.recipe.name), row, strict=True)) for row in rows])
        return
    out = console()
    if rows:
        print_columns(out, ["place", one.recipe.name, other.recipe.name], rows, wrap_texts=True)
    else:
        out.print(f"{one.recipe.name} and {other.recipe.name} are equal", markup=False)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
