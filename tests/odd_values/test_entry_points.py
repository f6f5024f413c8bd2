"""Odd values of the right type, at every public entry point: refused on arrival by name, or kept over a restart."""

from __future__ import annotations

import odd_forest
import odd_rollouts
import odd_store
import pytest
from odd_inputs import EntryPoint, try_odd_values

ENTRY_POINTS: dict[str, EntryPoint] = {**odd_forest.ENTRY_POINTS, **odd_rollouts.ENTRY_POINTS, **odd_store.ENTRY_POINTS}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_odd_values_are_refused_or_kept(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    try_odd_values(ENTRY_POINTS[name], tmp_path_factory)
