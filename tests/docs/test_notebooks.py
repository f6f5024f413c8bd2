"""The notebooks run from the first cell to the last, and are stored without outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from pages import DOCS, ROOT

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def notebook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_notebooks_and_the_site_has_them() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 4
    assert all(f"notebooks/{path.stem}.md" in site for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, notebook: ModuleType) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 4
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code), "clear the outputs"
    before = Path.cwd()
    page = notebook.page(path)
    assert page.count("```python\n") == len(code)
    assert page.count('<pre class="output">') >= 2
    assert Path.cwd() == before


def test_a_cell_output_holds_its_prints_and_its_last_expression(notebook: ModuleType, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["a = 2\n", "print('<b>')\n", "a * 21"]},
        {"cell_type": "code", "source": ["b = a"]},
    ]
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert notebook.page(path) == (
        "# Title\ntext\n\n```python\na = 2\nprint('<b>')\na * 21\n```\n\n"
        '<pre class="output">&lt;b&gt;\n42\n</pre>\n\n```python\nb = a\n```\n'
    )
    cells[1]["source"] = ["1 / 0"]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        notebook.page(path)
