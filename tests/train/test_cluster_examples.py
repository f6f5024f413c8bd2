"""The Ray job runs on a cluster of this machine; files for SLURM and Kubernetes are well-formed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl_core as arl

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
UNTESTED = sorted([*CLUSTER.glob("*.sbatch"), *CLUSTER.glob("*.yaml")])


@pytest.mark.slow
def test_the_ray_job_trains(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    completed = subprocess.run(
        [sys.executable, str(CLUSTER / "ray_job.py"), "--folder", str(tmp_path), "--iterations=2", "--collectors=2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert completed.returncode == 0, completed.stderr
    assert re.findall(r"^iteration (\d): reward \S+$", completed.stdout, re.MULTILINE) == ["0", "1"]
    with arl.Store.open(tmp_path) as store:
        assert store.iteration == 2
        assert not store.verify()
        for iteration in range(2):
            batch = store.batch(iteration=iteration)
            assert (batch.num_draws, batch.num_groups) == (64, 8)
            assert set(batch.column("policy_version", "token").tolist()) == {iteration}


@pytest.mark.parametrize("path", UNTESTED, ids=lambda path: path.name)
def test_untested_files_are_marked_and_name_existing_programs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "Untested: " in text
    programs = re.findall(r"examples/\S+\.py", text)
    assert programs
    assert all((ROOT / program).is_file() for program in programs)
    options = set(re.findall(r"--(?:folder|iterations|collectors)\b", text.rpartition(programs[-1])[2]))
    source = (ROOT / programs[-1]).read_text(encoding="utf-8")
    assert options
    assert all(f'add_argument("{option}"' in source for option in options)


@pytest.mark.parametrize("path", [path for path in UNTESTED if path.suffix == ".sbatch"], ids=lambda path: path.name)
def test_slurm_files_are_bash(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert directives
    assert max(directives) < first_command, "SLURM ignores directives after the first command"


def test_the_kubernetes_file_is_a_ray_job() -> None:
    yaml: Any = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["resources"]["requests"].keys() <= container["resources"]["limits"].keys()
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    assert f"--collectors {workers['replicas']}" in job["spec"]["entrypoint"]
