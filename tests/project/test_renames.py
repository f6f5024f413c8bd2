"""`tools/rename.py` rewrites each form in which a program uses a name, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import before_renames  # noqa: F401 - which puts the tool on the path
import pytest

import rename
from agentrl_core.renames import Renames
from renaming.table import Table

NAMES = Renames(
    {
        "modules": {
            "agentrl_core.collect.said": "agentrl_core.collect.counts",
            "agentrl_core.rollout.context": "agentrl_core.rollout.programs.page",
        },
        "names": {
            "agentrl_core.collect.said.Said": "agentrl_core.collect.counts.Counts",
            "agentrl_core.collect.said.split": "agentrl_core.collect.parts.split",
            "agentrl_core.env.TOOL_ERROR": "agentrl_core.env.StepFlag.TOOL_ERROR",
            "agentrl_core.env.TOOL_RESULT": "agentrl_core.env.StepFlag.TOOL_RESULT",
            "agentrl_core.filters": "agentrl_core.operators.filters",
            "agentrl_core.filters.group_band": "agentrl_core.operators.filters.group_band",
            "agentrl_core.advantage.gigpo": "agentrl_core.advantage.gigpo.gigpo",
            "agentrl_core.component.Schedule": "agentrl_core.Schedule",
            "agentrl_core.group.Partial": "agentrl_core.group.Shard",
            "agentrl_core.replay.bring": "removed: call collector.import_trajectories(...)",
            "agentrl_core.replay.Texts": "",
            "agentrl_core.reward.Dither": "agentrl_core.recipes.redit.Noise",
            "agentrl_core.rollout.Window": "agentrl_core.rollout.Page",
            "agentrl_core.schedule.Action": "agentrl_core.schedule.Hook",
        },
        "methods": {
            "agentrl_core.Collector.update": "close_iteration",
            "agentrl_core.Store.view": "removed: view.Page.of(store)",
            "agentrl_core.rollout.Branch.under": "with_prompt",
            "agentrl_core.schedule.Action.falls": "is_due",
            "agentrl_core.update.optimizer_step.Update.together": "cached",
            "agentrl_core.Collector.close": "stop",
            "*.carry_on": "resume",
        },
        "arguments": {
            "agentrl_core.Collector.cut": "policy",
            "agentrl_core.Collector.update.checkpoint": "weights",
            "agentrl_core.advantage.group_relative.scale": "divide",
        },
        "options": {
            "agentrl_core.Recipe.actions": "hooks",
            "agentrl_core.Recipe.shared=owner": "first",
            "agentrl_core.rollout.Window.observations": "count",
            "agentrl_core.schedule.Action.once": "at",
        },
        "metrics": {"said.age": "tokens.staleness", "said.": "tokens.", "seconds.old": "removed: sum seconds.*"},
        "columns": {"turn.late": "turn.straggler"},
    }
)
TABLE = Table.of(NAMES)

SAME = """\
from agentrl_core import rollout as r, Collector
class Mine:
    def update(self, batch): ...
    def carry_on(self): ...
update = Mine().update
Mine().carry_on()
table = {"said.age": 1}
names = ["said", "Window"]
numpy.update(1, checkpoint=2)
other.close()
Window = 3
"""

FORMS: dict[str, tuple[str, str]] = {
    "an import": ("import agentrl_core.collect.said\n", "import agentrl_core.collect.counts\n"),
    "an import with a name": (
        "import agentrl_core.rollout.context as c\nc.Window(observations=2)\n",
        "import agentrl_core.rollout.programs.page as c\nc.Page(count=2)\n",
    ),
    "a dotted path": (
        "import agentrl_core.rollout.context\nagentrl_core.rollout.context.Window()\n",
        "import agentrl_core.rollout.programs.page\nagentrl_core.rollout.programs.page.Page()\n",
    ),
    "names from a package": (
        "from agentrl_core.rollout import (\n    Branch,\n    Window,  # why\n)\nWindow(1)\n",
        "from agentrl_core.rollout import (\n    Branch,\n    Page,  # why\n)\nPage(1)\n",
    ),
    "a name with another": (
        "from agentrl_core.rollout import Window as W\nW(observations=1)\n",
        "from agentrl_core.rollout import Page as W\nW(count=1)\n",
    ),
    "a name whose new form is taken": (
        "from agentrl_core.rollout import Window\nPage = 1\nWindow(Page)\n",
        "from agentrl_core.rollout import Page as Window\nPage = 1\nWindow(Page)\n",
    ),
    "a module whose name is bound": (
        "from agentrl_core.collect import said\nsaid.Said()\n",
        "from agentrl_core.collect import counts\ncounts.Counts()\n",
    ),
    "names that part": (
        "def f():\n    from agentrl_core.collect.said import Said, split\n    return Said, split\n",
        (
            "def f():\n    from agentrl_core.collect.counts import Counts\n"
            "    from agentrl_core.collect.parts import split\n    return Counts, split\n"
        ),
    ),
    "an alias of the package": (
        "import agentrl_core as arl\narl.rollout.Window; arl.group.Partial\n",
        "import agentrl_core as arl\narl.rollout.Page; arl.group.Shard\n",
    ),
    "a package by its name": (
        "from agentrl_core import rollout, schedule as s\nrollout.Window(), s.Action\n",
        "from agentrl_core import rollout, schedule as s\nrollout.Page(), s.Hook\n",
    ),
    "the long path of a public name": (
        "from agentrl_core.operators.group import Partial\nfrom agentrl_core.rollout.context import Window\n",
        "from agentrl_core.operators.group import Shard\nfrom agentrl_core.rollout.programs.page import Page\n",
    ),
    "a name that has left its package": (
        "from agentrl_core import reward\nx = reward.Dither(0.1)\n",
        "from agentrl_core import reward\nfrom agentrl_core.recipes.redit import Noise\nx = Noise(0.1)\n",
    ),
    "a name that has left its package, in functions": (
        """\
def one():
    from agentrl_core import reward
    return reward.Dither
def two():
    from agentrl_core import reward  # here
    return reward.Dither, reward.Dither
""",
        """\
def one():
    from agentrl_core import reward
    from agentrl_core.recipes.redit import Noise
    return Noise
def two():
    from agentrl_core import reward  # here
    from agentrl_core.recipes.redit import Noise
    return Noise, Noise
""",
    ),
    "a constant that is a class's now": (
        """\
from agentrl_core import env
from agentrl_core.env import TOOL_ERROR, Task, TOOL_RESULT as R
env.TOOL_RESULT | TOOL_ERROR | R
""",
        """\
from agentrl_core import env
from agentrl_core.env import StepFlag, Task
env.StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR | StepFlag.TOOL_RESULT
""",
    ),
    "a module that has left the package's own names": (
        """\
import agentrl_core as arl
from agentrl_core import filters, Recipe
filters.group_band(), arl.filters.group_band()
""",
        """\
import agentrl_core as arl
from agentrl_core.operators.filters import group_band
from agentrl_core.operators import filters
from agentrl_core import Recipe
filters.group_band(), group_band()
""",
    ),
    "a function that has the name of its module": (
        """\
import agentrl_core.advantage.gigpo
from agentrl_core import advantage
from agentrl_core.advantage import gigpo as g
advantage.gigpo(1)
""",
        """\
import agentrl_core.advantage.gigpo
from agentrl_core import advantage
from agentrl_core.advantage.gigpo import gigpo
from agentrl_core.advantage.gigpo import gigpo as g
gigpo(1)
""",
    ),
    "a name that has come up": (
        "import agentrl_core as arl\nfrom agentrl_core.component import Schedule\narl.component.Schedule(1)\n",
        "import agentrl_core as arl\nfrom agentrl_core import Schedule\narl.Schedule(1)\n",
    ),
    "a method of a variable": (
        "import agentrl_core as arl\nc = arl.Collector(1, cut=None)\nc.update(c(), {}, checkpoint='x')\n",
        "import agentrl_core as arl\nc = arl.Collector(1, policy=None)\nc.close_iteration(c(), {}, weights='x')\n",
    ),
    "a method of an argument": (
        "import agentrl_core as arl\ndef f(c: arl.Collector | None, d: 'arl.Collector'):\n    c.update(d.update)\n",
        (
            "import agentrl_core as arl\ndef f(c: arl.Collector | None, d: 'arl.Collector'):\n"
            "    c.close_iteration(d.close_iteration)\n"
        ),
    ),
    "a method of a list's values": (
        (
            "from agentrl_core.rollout import Branch\ndef f(all: list[Branch]):\n"
            "    all[0].under(1)\n    return [each.under(each) for each in all]\n"
        ),
        (
            "from agentrl_core.rollout import Branch\ndef f(all: list[Branch]):\n"
            "    all[0].with_prompt(1)\n    return [each.with_prompt(each) for each in all]\n"
        ),
    ),
    "a method of a tuple's parts": (
        """\
import agentrl_core as arl
def both() -> tuple[arl.Store, arl.Collector]: ...
def many() -> tuple[arl.Collector, ...]: ...
store, collect = both()
collect.close(many()[0].close)
store.close()
""",
        """\
import agentrl_core as arl
def both() -> tuple[arl.Store, arl.Collector]: ...
def many() -> tuple[arl.Collector, ...]: ...
store, collect = both()
collect.stop(many()[0].stop)
store.close()
""",
    ),
    "a method of an attribute": (
        (
            "from agentrl_core import Collector\nclass T:\n    def __init__(self, c: Collector):\n        self.c = c\n"
            "    def go(self):\n        self.c.update(1)\n"
        ),
        (
            "from agentrl_core import Collector\nclass T:\n    def __init__(self, c: Collector):\n        self.c = c\n"
            "    def go(self):\n        self.c.close_iteration(1)\n"
        ),
    ),
    "a method of what a call gives": (
        (
            "from agentrl_core import recipes\nupdates = recipes.GRPO.updates(b)\n"
            "for n, update in enumerate(updates):\n    update.together(n)\n"
        ),
        (
            "from agentrl_core import recipes\nupdates = recipes.GRPO.updates(b)\n"
            "for n, update in enumerate(updates):\n    update.cached(n)\n"
        ),
    ),
    "a method of what with gives": (
        "import agentrl_core as arl\nwith arl.Collector(1) as c:\n    c.close()\n",
        "import agentrl_core as arl\nwith arl.Collector(1) as c:\n    c.stop()\n",
    ),
    "a method that only the package has": ("x.carry_on(1)\n", "x.resume(1)\n"),
    "options": (
        (
            "import dataclasses\nfrom agentrl_core import recipes\n"
            "r = recipes.PPO.replace(actions=None, shared='owner')\n"
            "dataclasses.replace(r, actions=r.actions)\n"
        ),
        (
            "import dataclasses\nfrom agentrl_core import recipes\n"
            "r = recipes.PPO.replace(hooks=None, shared='first')\n"
            "dataclasses.replace(r, hooks=r.hooks)\n"
        ),
    ),
    "an argument of a function": (
        "from agentrl_core import advantage\nadvantage.group_relative(a, b, scale='none')\n",
        "from agentrl_core import advantage\nadvantage.group_relative(a, b, divide='none')\n",
    ),
    "an argument of a subclass's method": (
        (
            "from agentrl_core import rollout\nclass P(rollout.Rollout):\n    async def branch(self, branch):\n"
            "        branch.under(1)\n"
        ),
        (
            "from agentrl_core import rollout\nclass P(rollout.Rollout):\n    async def branch(self, branch):\n"
            "        branch.with_prompt(1)\n"
        ),
    ),
    "methods that a subclass overrides": (
        (
            "from agentrl_core.schedule import Action, Freeze\nclass A(Action):\n    once: int = 1\n"
            "    def falls(self, n):\n        return super().falls(n)\nclass B(A):\n    def falls(self, n): ...\n"
            "A(once=2).falls(1)\nFreeze('policy', once=1)\n"
        ),
        (
            "from agentrl_core.schedule import Hook, Freeze\nclass A(Hook):\n    at: int = 1\n"
            "    def is_due(self, n):\n        return super().is_due(n)\nclass B(A):\n    def is_due(self, n): ...\n"
            "A(at=2).is_due(1)\nFreeze('policy', at=1)\n"
        ),
    ),
    "metrics": (
        "m['said.age'], metrics['said']['age'], metrics['said'], m.get('said.dropped', 0), x == 'said.age'\n",
        (
            "m['tokens.staleness'], metrics['tokens']['staleness'], metrics['tokens'], m.get('tokens.dropped', 0), "
            "x == 'tokens.staleness'\n"
        ),
    ),
    "metrics in Polars and in options": (
        "f.filter(pl.col('name').is_in(['said.age', 'loss']))\nAbove(metric='said.age')\n",
        "f.filter(pl.col('name').is_in(['tokens.staleness', 'loss']))\nAbove(metric='tokens.staleness')\n",
    ),
    "columns": ("batch.column('turn.late', 'draw')\n", "batch.column('turn.straggler', 'draw')\n"),
    "a path as a text": (
        "load('agentrl_core.collect.said'), 'agentrl_core.rollout.context:Window'\n",
        "load('agentrl_core.collect.counts'), 'agentrl_core.rollout.programs.page:Page'\n",
    ),
    "inside a text": (
        "from agentrl_core.rollout import Window\nf'é {Window(observations=1)!r}'\n",
        "from agentrl_core.rollout import Page\nf'é {Page(count=1)!r}'\n",
    ),
    "lines of Windows": (
        "from agentrl_core.rollout import Window\r\n\r\nWindow( 1 )  # é\r\n",
        "from agentrl_core.rollout import Page\r\n\r\nPage( 1 )  # é\r\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), FORMS.values(), ids=FORMS)
def test_each_form_is_rewritten_once(before: str, after: str) -> None:
    result = rename.rewrite_python(before.encode(), TABLE)
    assert result.text.decode() == after
    assert result.problems == []
    assert rename.rewrite_python(result.text, TABLE) == result


def test_code_that_only_looks_similar_is_not_renamed() -> None:
    assert rename.rewrite_python(SAME.encode(), TABLE) == (SAME.encode(), [])


def test_names_that_were_removed_are_reported_with_their_lines() -> None:
    source = """\
import agentrl_core as arl
from agentrl_core.replay import bring, Memory
text = arl.replay.Texts()
store = arl.Store.open("run")
store.view()
metrics["seconds.old"]
"""
    result = rename.rewrite_python(source.encode(), TABLE)
    assert result.text.decode() == source
    assert [(each.line, each.text) for each in result.problems] == [
        (2, "bring: removed; call collector.import_trajectories(...)"),
        (3, "Texts: removed"),
        (5, "view: removed; view.Page.of(store)"),
        (6, "seconds.old: removed; sum seconds.*"),
    ]


def test_a_file_that_is_not_python_is_reported() -> None:
    result = rename.rewrite_python(b"import agentrl_core\ndef (\n", TABLE)
    assert result.text == b"import agentrl_core\ndef (\n"
    assert result.problems[0].line == 2


@pytest.mark.parametrize("indent", [1, 2])
def test_cells_of_a_notebook_share_their_names(indent: int) -> None:
    def notebook(*cells: list[str]) -> bytes:
        made = [{"cell_type": "code", "outputs": [], "source": each} for each in cells]
        text = {"cell_type": "markdown", "source": ["Window: é\n"]}
        return (json.dumps({"cells": [text, *made]}, indent=indent, ensure_ascii=False) + "\n").encode()

    before = notebook(["%matplotlib inline\n", "from agentrl_core.rollout import Window"], ["await f()\n", "Window(1)"])
    after = notebook(["%matplotlib inline\n", "from agentrl_core.rollout import Page"], ["await f()\n", "Page(1)"])
    made = rename.rewrite_notebook(before, TABLE)
    assert made == (after, [])
    assert rename.rewrite_notebook(after, TABLE) == made


def test_blocks_of_a_page_are_rewritten_and_its_text_is_not() -> None:
    before = """\
`Window` has `said.age`.

```python
from agentrl_core.rollout import Window
```

- in a list

  ```python
  Window(1)
  store = None
  ```

```
Window(1)
```

```python
>>> Window(1)
```

```python
for each in Window(2):
```

```python
    each.observations
```

```toml
name = "mine"
[rollout]
component = "Window"
```
"""
    after = before.replace("import Window", "import Page").replace("  Window(1)\n  store", "  Page(1)\n  store")
    after = after.replace("in Window(2)", "in Page(2)")
    after = after.replace('component = "Window"', 'component = "Page"')
    result = rename.rewrite_page(before.encode(), TABLE)
    assert result == (after.encode(), [])
    assert rename.rewrite_page(after.encode(), TABLE) == result


RECIPE = """\
name = "mine"  # Window
shared = 'owner'

[rollout]  # the newest pages
component = "Window"
observations = 3

[loss]
component = "Policy"
"clip" = {component = "Clip", low = {component = "agentrl_core.schedule:Above", metric = "said.age"}}

[[actions]]
component = "Stop"
once = 4
[actions.when]
component = "agentrl_core.schedule:Above"
metric = "said.stale"
threshold = 5

[[actions]]
component = "agentrl_core.rollout.context:Window"

[train]
observations = "said.age"
"""


def test_recipe_files_keep_their_form() -> None:
    after = RECIPE.replace("'owner'", "'first'").replace(
        'component = "Window"\nobservations', 'component = "Page"\ncount'
    )
    after = after.replace('metric = "said.age"', 'metric = "tokens.staleness"').replace("actions", "hooks")
    after = after.replace("once = 4", "at = 4").replace("said.stale", "tokens.stale")
    after = after.replace("agentrl_core.rollout.context:Window", "agentrl_core.rollout.programs.page:Page")
    result = rename.rewrite_recipe(RECIPE.encode(), Table.of(_with(NAMES, "agentrl_core.schedule.Stop.once", "at")))
    assert result.text.decode() == after
    assert result.problems == []
    assert rename.rewrite_recipe(after.encode(), TABLE) == result


def _with(names: Renames, option: str, new: str) -> Renames:
    return Renames({**names.sections, "options": {**names.sections["options"], option: new}})


def test_other_documents_stay() -> None:
    text = b'name = "Window"\n[tool]\nactions = 1\n'
    assert rename.rewrite_recipe(text, TABLE) == (text, [])


def test_a_removed_component_of_a_recipe_file_is_reported() -> None:
    text = b'name = "mine"\n[replay]\ncomponent = "Texts"\n'
    result = rename.rewrite_recipe(text, TABLE)
    assert result.text == text
    assert "component 'Texts' was removed" in result.problems[0].text


def test_files_of_a_folder_are_rewritten_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "names.toml"
    table.write_text(
        '[names]\n"agentrl_core.rollout.Window" = "agentrl_core.rollout.Page"\n"agentrl_core.env.MCP" = ""\n'
    )
    inside = tmp_path / "code"
    (inside / ".hidden").mkdir(parents=True)
    old, new = "from agentrl_core.rollout import Window\n", "from agentrl_core.rollout import Page\n"
    for name in ("one.py", ".hidden/two.py", "three.txt"):
        (inside / name).write_text(old)
    arguments = [str(inside), "--table", str(table)]
    assert rename.main([*arguments, "--check"]) == 1
    assert (inside / "one.py").read_text() == old
    assert capsys.readouterr().out == "1 files read, 1 would change, 0 places to change by hand\n"
    assert rename.main(arguments) == 0
    assert [(inside / name).read_text() for name in ("one.py", ".hidden/two.py", "three.txt")] == [new, old, old]
    assert rename.main([*arguments, "--check"]) == 0
    (inside / "one.py").write_text("from agentrl_core import env\nenv.MCP\n")
    capsys.readouterr()
    assert rename.main(arguments) == 1
    assert capsys.readouterr().out == (
        f"{inside / 'one.py'}:2: MCP: removed\n1 files read, 0 changed, 1 places to change by hand\n"
    )
