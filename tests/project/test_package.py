"""The installed package: the cost of its import, and errors that can be pickled."""

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from types import ModuleType

import pytest

import agentrl_core
from agentrl_core import _core, exceptions

MOST_MODULES = 8
HEAVY = ("matplotlib", "polars", "pyarrow", "ray", "reasoning_gym", "rich", "torch", "transformers", "vllm")
ERRORS = [
    value
    for value in vars(exceptions).values()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning)
]


def fresh(program: str) -> str:
    """Return the output of a program in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_installed_package_is_tested(root: Path) -> None:
    place = Path(str(agentrl_core.__file__)).resolve()
    assert not place.is_relative_to(root / "python"), f"{place} is the source tree: run make develop"


def test_errors_were_found() -> None:
    assert exceptions.AgentRLError in ERRORS
    assert len(ERRORS) > 1


@pytest.mark.parametrize("error", ERRORS)
def test_errors_share_a_base_and_pickle(error: type[Exception]) -> None:
    assert issubclass(error, exceptions.AgentRLError)
    assert error.__module__ == "agentrl_core.exceptions"
    raised = error("scores has 3 values, groups has 4: pass one group for each score")
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), again.args, str(again)) == (error, raised.args, str(raised))


def test_functions_of_the_core_are_found_by_name() -> None:
    families = {name: family for name, family in vars(_core).items() if isinstance(family, ModuleType)}
    assert {"group", "weight"} <= families.keys()
    for name, family in families.items():
        assert import_module(f"agentrl_core._core.{name}") is family
        functions = [getattr(family, function) for function in family.__all__]
        assert functions
        assert pickle.loads(pickle.dumps(functions)) == functions


def test_import_is_light() -> None:
    program = "import sys, agentrl_core; print('agentrl_core' in sys.modules, *sys.modules)"
    found, *modules = fresh(program).split()
    assert found == "True"
    assert not set(HEAVY) & set(modules)


def test_import_brings_few_modules(measured: Callable[[str], None]) -> None:
    program = """
import sys, time
import numpy
before = set(sys.modules)
start = time.perf_counter()
import agentrl_core
print((time.perf_counter() - start) * 1e3, *set(sys.modules) - before)
"""
    milliseconds, *modules = fresh(program).split()
    measured(f"import agentrl_core: {float(milliseconds):.1f} ms and {len(modules)} modules beyond NumPy")
    assert "agentrl_core" in modules
    assert len(modules) <= MOST_MODULES


def test_functions_that_need_torch_report_how_to_install_it() -> None:
    program = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import MissingDependencyError
from agentrl_core._util.lazy_torch import torch

forest = arl.Forest()
forest.add_group(0, "task")
for member, reward in enumerate([1.0, 0.0]):
    trajectory = forest.start(0, member)
    forest.append(trajectory, [1, 2], kind="prompt")
    forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
    forest.finish(trajectory, reward=reward)
batch = recipes.GRPO.credit(forest.freeze())
(update,) = recipes.GRPO.updates(batch)
for call in (
    lambda: update.pack(max_tokens=8),
    lambda: update.gradient_cached(print, max_tokens=8),
    lambda: arl.annotate(batch, "reference_logprob", print),
    lambda: torch.zeros(1),
):
    try:
        call()
    except MissingDependencyError as error:
        print(error)
"""
    needing = ["a pack", "a pack", "annotate", "a loss"]
    assert fresh(program).splitlines() == [
        f"{what} needs the package torch, which is not installed; pip install 'agentrl-core[torch]'" for what in needing
    ]


def test_extras_are_spelled_in_one_way_and_exist(root: Path) -> None:
    """Write the name of the package as pip shows it: `agentrl-core[extra]`."""
    extras = set(metadata("agentrl_core").get_all("Provides-Extra") or ())
    assert extras
    files = [*root.glob("python/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md", root / "pyproject.toml"]
    found = [
        (path.name, *match.groups())
        for path in files
        for match in re.finditer(r"\b(agentrl[-_.]core)\[([a-z][\w,-]*)\]", path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 10
    for name, package, named in found:
        assert package == "agentrl-core", f"{name}: {package}[{named}]"
        assert set(named.split(",")) <= extras, f"{name}: {named}"
