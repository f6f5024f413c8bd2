"""The cache of compiled kernels, and the fallbacks without a compiler or a device."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model import cuda_kernels

NAME = "linear_logprob"
LONGEST_COMPILE_S, LONGEST_CACHED_MS, LONGEST_IMPORT_MS = 2.0, 50, 50


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed", exc_type=ImportError)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "agentrl_core" / "cuda"


def test_it_compiles_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.process_time()
    code = cuda_kernels.cubin(NAME, "sm_90")
    assert time.process_time() - start < LONGEST_COMPILE_S
    (file,) = cache.iterdir()
    assert file.name.startswith(f"{NAME}-")
    assert file.name.endswith("-sm_90.cubin")
    assert file.read_bytes() == code
    monkeypatch.delattr(cuda_kernels, "_compiled")
    start = time.process_time()
    assert cuda_kernels.cubin(NAME, "sm_90") == code
    assert 1e3 * (time.process_time() - start) < LONGEST_CACHED_MS


def test_another_text_another_architecture_another_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = cuda_kernels.source(NAME)
    cuda_kernels.cubin(NAME, "sm_90")
    cuda_kernels.cubin(NAME, "sm_80")
    monkeypatch.setattr(cuda_kernels, "source", lambda _: text + "// more\n")
    cuda_kernels.cubin(NAME, "sm_90")
    assert len(list(cache.iterdir())) == 3


def test_a_truncated_cache_file_is_compiled_again(cache: Path) -> None:
    code = cuda_kernels.cubin(NAME, "sm_90")
    (file,) = cache.iterdir()
    file.write_bytes(b"")
    assert cuda_kernels.cubin(NAME, "sm_90") == code
    assert file.read_bytes() == code


def test_it_compiles_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed", exc_type=ImportError)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # a file cannot contain a folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = cuda_kernels.cubin(NAME, "sm_90")
    (cache_file,) = (tmp_path / f"agentrl_core-{os.getuid()}" / "cuda").iterdir()
    assert cache_file.read_bytes() == code
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert cuda_kernels.cubin(NAME, "sm_90") == code


def test_processes_that_compile_at_once_do_not_disturb_each_other(cache: Path) -> None:
    program = f"from agentrl_core.model import cuda_kernels; print(len(cuda_kernels.cubin({NAME!r}, 'sm_90')))"
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    lengths = {process.communicate()[0] for process in running}
    assert all(process.returncode == 0 for process in running)
    assert len(lengths) == 1
    assert len(list(cache.iterdir())) == 1


def test_an_architecture_that_nvrtc_does_not_know(cache: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)do not compile for sm_13: .*AGENTRL_CUDA=0"):
        cuda_kernels.cubin(NAME, "sm_13")
    assert list(cache.iterdir()) == []


def test_no_kernels_without_cuda_or_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_kernels.kernels(NAME, torch.device("cpu")) is None
    monkeypatch.setenv("AGENTRL_CUDA", "0")
    assert cuda_kernels.kernels(NAME, torch.device("cuda", 0)) is None


def test_without_cuda_core_kernels_are_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: object, **more: object) -> object:
        if name.startswith("cuda"):
            raise ImportError(name)
        return original(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    cuda_kernels._loaded.cache_clear()
    with pytest.warns(UserWarning, match=r"cuda-core is not installed.*agentrl-core\[cuda\].*AGENTRL_CUDA=0"):
        assert cuda_kernels.kernels(NAME, torch.device("cuda", 0)) is None
    cuda_kernels._loaded.cache_clear()


def test_importing_the_loss_imports_no_cuda_package() -> None:
    program = """
import sys, time
import torch, agentrl_core.loss, agentrl_core.model.pack
before, start = set(sys.modules), time.process_time()
import agentrl_core.loss.chunked_logits
spent = 1e3 * (time.process_time() - start)
print(spent, *(name for name in set(sys.modules) - before if name.split(".")[0] == "cuda"))
"""
    results = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert all(len(result) == 1 for result in results), results
    assert min(float(result[0]) for result in results) < LONGEST_IMPORT_MS
