"""`tools/rename.py` and recipe files: options that were texts and are tuples now, and options that were removed."""

from __future__ import annotations

import before_renames  # noqa: F401 - which puts the tool on the path
import pytest

import rename
from agentrl_core.exceptions import RecipeError
from agentrl_core.renames import Renames
from renaming.table import Table

NAMES = Renames(
    {
        "options": {
            "agentrl_core.recipes.rl_100.Gain.margin": "removed: use fraction",
            "agentrl_core.recipes.rl_100.Gain.margin=0": "",
        },
        "lists": {
            "agentrl_core.recipes.icpi.Imagine.actions": "|",
            "agentrl_core.rollout.Play.agents": "list",
            "agentrl_core.select.Quota.targets": "list=",
            "agentrl_core.select.Stages.buckets": "list+",
        },
    }
)
TABLE = Table.of(NAMES)

BEFORE = """\
from agentrl_core import rollout, select
from agentrl_core.recipes.icpi import Imagine
class Mine(Imagine): ...
NAMES = ("a", "b")
Imagine("go|look"), Imagine(actions='"go"|it'), Mine(actions="go")
Mine("go|"  # why
    "look").replace(actions="a|b")
select.Stages("hops", "3,8.5"), select.Stages(by="domain", buckets="math+logic, code")
select.Quota("math=2,code=.5"), select.Quota("")
rollout.Play(agents="a, b"), rollout.Play(agents=list(each))
rollout.Play(NAMES), rollout.Play(agents=["a,b"]), rollout.Play(agents=[each for each in NAMES]), Imagine()
"""
AFTER = """\
from agentrl_core import rollout, select
from agentrl_core.recipes.icpi import Imagine
class Mine(Imagine): ...
NAMES = ("a", "b")
Imagine(("go", "look")), Imagine(actions=('"go"', 'it')), Mine(actions=("go",))
Mine(("go", "look")).replace(actions=("a", "b"))
select.Stages("hops", (3, 8.5)), select.Stages(by="domain", buckets=(("math", "logic"), "code"))
select.Quota((("math", 2), ("code", 0.5))), select.Quota(())
rollout.Play(agents=("a", "b")), rollout.Play(agents=list(each))
rollout.Play(NAMES), rollout.Play(agents=["a,b"]), rollout.Play(agents=[each for each in NAMES]), Imagine()
"""


def test_texts_of_several_items_are_rewritten_as_tuples() -> None:
    made = rename.rewrite_python(BEFORE.encode(), TABLE)
    assert (made.text.decode(), made.problems) == (AFTER, [])
    assert rename.rewrite_python(made.text, TABLE) == made


def test_options_to_change_by_hand_are_reported_with_their_lines() -> None:
    source = """\
from agentrl_core import rollout
from agentrl_core.recipes.icpi import Imagine
from agentrl_core.recipes.rl_100 import Gain
NAMES = "a,b"
Imagine(actions=f"{NAMES}|c")
rollout.Play(NAMES)
rollout.Play(*many, agents=",".join(many))
Gain(margin=0.1)
Gain(0.0)
Gain().margin
"""
    made = rename.rewrite_python(source.encode(), TABLE)
    assert made.text.decode() == source
    assert sorted((each.line, each.text) for each in made.problems) == [
        (5, "actions: is a tuple now; change its value by hand"),
        (6, "agents: is a tuple now; change its value by hand"),
        (7, "agents: is a tuple now; change its value by hand"),
        (8, "margin: removed; use fraction"),
        (9, "margin: removed; use fraction"),
        (10, "margin: removed; use fraction"),
    ]


GAIN = """\
name = "mine"

[select]
component = "ComposedSelector"
stage = { component = "Stages", by = "domain", buckets = "math+logic,code" }  # by domain

[[advantage]]
component = "GroupRelative"

[[advantage]]
component = "agentrl_core.recipes.rl_100:Gain"
margin = 0.0  # as before
fraction = 0.1
"""


def test_options_of_a_recipe_file_that_were_removed_leave_it_or_are_reported() -> None:
    after = GAIN.replace("margin = 0.0  # as before\n", "").replace('"math+logic,code"', '[["math", "logic"], "code"]')
    made = rename.rewrite_recipe(GAIN.encode(), TABLE)
    assert (made.text.decode(), made.problems) == (after, [])
    changed = GAIN.replace("margin = 0.0", "margin = 0.1").encode()
    made = rename.rewrite_recipe(changed, TABLE)
    assert made.text == changed
    assert [(each.line, each.text.partition(" of ")) for each in made.problems] == [
        (12, ("option 'margin'", " of ", "component 'agentrl_core.recipes.rl_100:Gain' was removed; use fraction"))
    ]
    page = b"# Title\n\n```toml\n" + changed + b"```\n"
    assert [each.line for each in rename.rewrite_page(page, TABLE).problems] == [15]
    inline = b'name = "mine"\n[loss]\npart = { component = "agentrl_core.recipes.rl_100:Gain", margin = 0.0 }\n'
    inline = inline.replace(b"[loss]\n", b'[loss]\ncomponent = "Policy"\n')
    made = rename.rewrite_recipe(inline, TABLE)
    assert made.text == inline
    assert [each.text.partition(";")[0] for each in made.problems] == ["it cannot be edited in place"]


def test_a_list_that_was_one_text_is_split_as_it_was_joined() -> None:
    path = "agentrl_core.recipes.icpi.Imagine"
    names = Renames({"lists": {f"{path}.actions": "|", f"{path}.places": "list"}})
    for actions in ("go, then look|1", ["go, then look", "1"]):
        table = {"component": "icpi.Imagine", "actions": actions, "places": "1, b"}
        assert names.component("agentrl_core.recipes", table) == {
            "component": "icpi.Imagine",
            "actions": ["go, then look", "1"],
            "places": ["1", "b"],
        }


@pytest.mark.parametrize("value", [0, 0.0, 0.5])
def test_a_removed_option_is_dropped_only_at_its_default(value: float) -> None:
    table = {"component": "agentrl_core.recipes.rl_100:Gain", "margin": value}
    if value:
        with pytest.raises(RecipeError, match=r"option 'margin' of component '.*Gain' was removed; use fraction"):
            NAMES.component("agentrl_core.advantage", table)
    else:
        assert NAMES.component("agentrl_core.advantage", table) == {"component": table["component"]}
