"""The number of public names: each is one more name to learn, and a promise."""

from __future__ import annotations

import inspect

from public_names import public_names

import agentrl_core

COUNT = 280
"""The number of names, which may only decrease: to add a name, remove another."""


def test_the_number_of_public_names_does_not_grow() -> None:
    names = public_names()
    assert {
        "agentrl_core",
        "agentrl_core.loss",
        "agentrl_core.component",
        "agentrl_core.operators.group",
    } <= names.keys()
    assert all(names.values()), "a public module without a public name"
    count = sum(map(len, names.values()))
    assert count == COUNT, f"{count} public names (python tests/support/public_names.py); lower COUNT after a removal"


def test_every_public_name_is_there() -> None:
    for name in agentrl_core.__all__:
        value = getattr(agentrl_core, name)
        if inspect.ismodule(value):
            assert all(hasattr(value, public) for public in getattr(value, "__all__", ())), name
