"""The program on docs/rollouts.md runs as written."""

from __future__ import annotations

from pages import block, run


def test_the_program_runs() -> None:
    code = block("rollouts", "python")
    program = code[code.index("@dataclass") : code.index("world =")]
    assert len([line for line in program.splitlines() if line.strip()]) <= 18
    assert run("rollouts")["batch"].num_draws >= 8
