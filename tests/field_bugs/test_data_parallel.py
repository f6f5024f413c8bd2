"""Two ranks train one update through the wrappers of PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "support" / "data_parallel.py"


@pytest.fixture(scope="module")
def reports():
    """Return the result of each mode, after a check that gradients added up by hand are right."""
    completed = subprocess.run([sys.executable, PROGRAM], stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    report = json.loads(completed.stdout)
    assert report["all_reduce"]["difference"] < 1e-6
    return report


def check(report, *unhelpful):
    """Check that the gradient is right up to a factor, or that the package raises a clear error."""
    if "error" in report:
        assert not [words for words in unhelpful if words in report["error"]]
        assert report["by_package"], report["error"]
    else:
        assert report["difference"] < 1e-6


def test_ddp_has_the_gradient_of_one_process_or_a_helpful_error(reports):
    """open-instruct#1161, trl#3231: packs through DistributedDataParallel."""
    check(reports["ddp"], "adapter")


def test_module_of_ddp_has_the_gradient_of_one_process_or_a_helpful_error(reports):
    """open-instruct#1161, trl#3231: packs through DistributedDataParallel's module."""
    check(reports["ddp.module"])


def test_fsdp2_has_the_gradient_of_one_process_or_a_helpful_error(reports):
    """torchtitan#2206: packs through fully_shard."""
    check(reports["fsdp2"], "mixed torch.Tensor")
