"""Kernels of a CUDA file compiled for the host, with the launch interface of a device."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from torch import Tensor

from agentrl_core.model import cuda_kernels

HERE = Path(__file__).parent


class HostKernels:
    """A host version of `cuda_kernels.Kernels`: threads of the CPU, at most `most_threads` per block."""

    def __init__(self, name: str, compiler: str, folder: Path, most_threads: int = 64) -> None:
        kernels, library = folder / f"{name}.cu", folder / f"{name}.so"
        kernels.write_text(cuda_kernels.source(name), encoding="utf-8")
        options = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
        command = [compiler, *options, f'-DKERNELS="{kernels}"', str(HERE / f"{name}_host.cpp"), "-o", str(library)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        self._library = ctypes.CDLL(str(library))
        self._most = most_threads

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Tensor | float | None) -> None:
        numbers = [_number(argument) for argument in (blocks, min(threads, self._most), *arguments)]
        getattr(self._library, f"run_{kernel}")(*numbers)


def _number(argument: Tensor | float | None) -> ctypes.c_longlong | ctypes.c_double | ctypes.c_void_p:
    if isinstance(argument, int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    return ctypes.c_void_p(None if argument is None else argument.data_ptr())
