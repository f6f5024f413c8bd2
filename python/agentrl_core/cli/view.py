"""`agentrl view`: write a run as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentrl_core.cli._terminal import in_a_line, iteration_range, opened


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN -o FILE --iterations A:B --tokenizer PATH --tokens N`."""
    command.description = (
        "Write a run as one HTML file, which a browser opens without server or network. It has curves, the groups of "
        "an iteration, token trees with advantages, texts with the columns of each token, the computation of an "
        "advantage, members side by side, drift and search. Works while the run is written."
    )
    command.epilog = (
        "examples:\n  agentrl view runs/demo\n  agentrl view runs/demo -o run.html\n"
        "  agentrl view runs/demo -o late.html --iterations 30:"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("-o", "--to", metavar="FILE", help="the file to write (default: the run's name and .html)")
    command.add_argument(
        "--iterations",
        metavar="A:B",
        help="groups of iterations from A up to B, without B; both are optional (default: the latest that fit)",
    )
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, or its directory, to decode tokens (default: that of the run)",
    )
    command.add_argument(
        "--tokens",
        type=int,
        default=1_000_000,
        metavar="N",
        help="largest number of tokens in the page; a million make about 10 MB, and images at most as much (default: "
        "1000000)",
    )


def run(path: str, to: str | None, iterations: str | None, tokenizer: str | None, tokens: int) -> int:
    """Write the HTML page of a run."""
    from agentrl_core.view import Page

    target = Path(to) if to is not None else Path(f"{Path(path).resolve().name}.html")
    bounds = iteration_range(iterations)
    with opened(path) as store:
        page = Page.of(store, iterations=bounds, tokenizer=tokenizer, tokens=tokens)
    page.save(target)
    print(f"{in_a_line(str(target))}: {target.stat().st_size / 1e6:.1f} MB; open it in a browser", file=sys.stderr)
    return 0
