"""The tables and commands of docs/engines.md name existing things; its trainer runs in tests/engine."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from pages import block, text_of

from agentrl_core import engine


def test_the_tables_name_every_engine_and_every_cause() -> None:
    pytest.importorskip("transformers")
    from agentrl_core.engine.logprob_check import Cause

    text = text_of("engines")
    named = set(re.findall(r"^\| `([A-Z][a-zA-Z]+)\(", text, re.MULTILINE))
    engines = {name for name in engine.__all__ if hasattr(getattr(engine, name), "generate")} - {"Engine"}
    assert named == engines
    assert len(named) >= 5
    causes = set(re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE))
    assert causes == set(get_args(Cause)) - {"none"}


def test_the_engines_page_starts_servers_with_the_arguments_of_the_tests() -> None:
    from vllm_server import ARGUMENTS

    for index in range(2):
        command = block("engines", "sh", index)
        for word in ARGUMENTS:
            assert word in command
        assert "VLLM_SERVER_DEV_MODE=1" in command
