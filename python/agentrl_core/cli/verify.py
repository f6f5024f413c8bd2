"""`agentrl verify`: check the integrity of a run's files."""

from __future__ import annotations

import argparse

from agentrl_core.cli._terminal import console, escaped, in_a_line, opened


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN`."""
    command.description = (
        "Check every byte of a run against its checksum, and the consistency of its rows. Exits with 1 if an error is "
        "found. Works while the run is written; it checks the commits that exist at its start."
    )
    command.epilog = "examples:\n  agentrl verify runs/demo"
    command.add_argument("path", metavar="RUN", help="directory of the run")


def run(path: str) -> int:
    """Check a run's store, and print the errors found."""
    from rich.text import Text

    out = console()
    with opened(path) as store:
        findings = store.verify()
        for finding in findings:
            where = " ".join(str(value) for name, value in finding.items() if name != "message" and value is not None)
            line = Text(where, style="bold red").append(f": {escaped(finding['message'])}", style="default")
            out.print(line)
        result = f"{len(findings)} findings" if findings else "no errors found"
        out.print(Text(f"commit {store.version} of {in_a_line(path)}: {result}"))
    return 1 if findings else 0
