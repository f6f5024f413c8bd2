"""Causes of `bench/evidence`: each entry is for a recipe that the records show as not improving, and has evidence."""

from __future__ import annotations

from pathlib import Path

import causes
import pytest
import records
import report

from agentrl_core import recipes

SCREENING = records.study("screening")
NAMES = report.unimproved(SCREENING)


def test_an_entry_is_of_a_recipe_that_does_not_improve() -> None:
    assert len(NAMES) > 20
    known = causes.load().keys()
    assert known <= set(recipes.names())
    assert known & report.screened(SCREENING).keys() <= set(NAMES), (
        "its records show that it improves: remove its entry"
    )


def test_an_entry_has_a_number_of_a_run_or_of_the_recipe() -> None:
    for name, (cause, text) in causes.load().items():
        assert cause == "open" or any(character.isdigit() for character in text), name


def test_every_recipe_that_does_not_improve_has_a_row() -> None:
    rows = causes.cause_rows([*NAMES, "no_such_recipe"])
    assert {name for name, _, _ in rows} == {*NAMES, "no_such_recipe"}
    assert ("no_such_recipe", "open", "Not looked into yet.") in rows
    assert sum(count for _, _, count in causes.kind_rows(NAMES)) == len(NAMES)
    kinds = [list(causes.KINDS).index(cause) for _, cause, _ in rows]
    assert kinds == sorted(kinds)


def test_every_refusal_has_a_reason() -> None:
    errors = causes.refused(SCREENING)
    assert len(errors) > 30
    assert {causes.reason(error) for error in errors.values()} <= set(causes.REASONS.values())
    assert sum(count for _, count, _ in causes.refusal_rows(errors)) == len(errors)
    error = "recipe 'x' trains model 'critic' with several values, but agentrl train adds one value head"
    assert causes.reason(error) == "a critic with several values"


@pytest.mark.parametrize(
    ("entry", "message"),
    [('[x]\ncause = "luck"\ntext = "A."\n', "write one of rate"), ('[x]\ncause = "rate"\ntext = ""\n', "a sentence")],
)
def test_an_entry_with_a_mistake_is_refused(
    entry: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "FILE", tmp_path / "causes.toml")
    causes.FILE.write_text(entry)
    with pytest.raises(ValueError, match=message):
        causes.load()
