"""Files for people new to the project: to report, to cite, to contribute; and workflows pinned to commits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
USED = re.compile(r"^\s*(?:-\s+)?uses:\s*(\S+)(?:\s+#\s*(\S+))?\s*$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.IGNORECASE)


def loaded(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_workflows_are_pinned_to_commits(root: Path) -> None:
    pins_by_action: dict[str, set[tuple[str, str]]] = {}
    workflows = list((root / ".github/workflows").glob("*.yml"))
    for path in workflows:
        text = path.read_text(encoding="utf-8")
        uses = USED.findall(text)
        assert len(uses) == text.count("uses:")
        for action, version in uses:
            assert PINNED.fullmatch(action), f"{path.name}: {action}"
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version), f"{path.name}: {action} does not name its version"
            pins_by_action.setdefault(action.partition("@")[0], set()).add((action, version))
    assert len(workflows) >= 2
    assert len(pins_by_action) >= 5
    assert all(len(pins) == 1 for pins in pins_by_action.values()), "one commit for each action"


def test_workflows_get_no_more_than_they_need(root: Path) -> None:
    for path in (root / ".github/workflows").glob("*.yml"):
        workflow = loaded(path)
        assert workflow["permissions"] == {"contents": "read"}, path.name
        granted = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        assert set(granted) <= {"publish"}, path.name
        # A workflow of a pull request never gets secrets: this event would pass them to other people's code.
        assert "pull_request_target" not in workflow[True], path.name  # `on` reads as true in YAML 1.1


def test_the_policy_of_security_repeats_the_page(root: Path) -> None:
    """The page has the table; the policy has its first paragraph and links to it."""
    policy = " ".join((root / "SECURITY.md").read_text(encoding="utf-8").split())
    page = (root / "docs/trust.md").read_text(encoding="utf-8").split("\n\n")[1]
    first, second, _ = re.split(r"(?<=\.) ", " ".join(page.split()))
    assert f"## What is trusted {first} {second} " in policy
    assert "(docs/trust.md)" in policy


def test_the_citation_is_complete(root: Path) -> None:
    citation = loaded(root / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "agentrl_core"
    assert f'license = "{citation["license"]}"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    # The version has one source, which is another file.
    assert "version" not in citation


def test_issue_forms_have_required_fields(root: Path) -> None:
    forms = [path for path in (root / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) >= 3
    for path in forms:
        form = loaded(path)
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert any(field["validations"]["required"] for field in fields), path.name
    assert (root / ".github/PULL_REQUEST_TEMPLATE.md").is_file()


def test_no_address_is_invented(tracked: list[Path], root: Path) -> None:
    names = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff")
    checked = [path for path in tracked if path.name in names or ".github" in path.relative_to(root).parts]
    assert len(checked) >= 8
    for path in checked:
        assert not ADDRESS.findall(path.read_text(encoding="utf-8")), path.name
