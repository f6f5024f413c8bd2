"""CUDA kernels from text: compiled by NVRTC when first used, kept on disk, launched on torch's current stream.

The sources are `agentrl_core/cuda/*.cu`. NVIDIA's package cuda-core does the compiling, loading and launching; where it
is not installed, or AGENTRL_CUDA is 0, there are no kernels and the same operation runs in PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import warnings
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl_core.exceptions import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

SWITCH = "AGENTRL_CUDA"
_STANDARD = "c++17"
_ELF = b"\x7fELF"


def source(name: str) -> str:
    """The text of a file of kernels."""
    return files("agentrl_core").joinpath("cuda", f"{name}.cu").read_text(encoding="utf-8")


def cubin(name: str, architecture: str) -> bytes:
    """A file of kernels as machine code: from the cache, or compiled and put there.

    The cache is `agentrl_core/cuda` in XDG_CACHE_HOME or ~/.cache, or, where that cannot be written, a folder of the
    user's own among the temporary files. A file is named after all that its content depends on, and appears whole.

    Args:
        name: the file, without `.cu`.
        architecture: such as `sm_90`.

    Raises:
        UnsupportedError: NVRTC cannot compile the file for this architecture.
    """
    from cuda.bindings import nvrtc

    text = source(name)
    _, major, minor = nvrtc.nvrtcVersion()
    key = hashlib.sha256(f"{_STANDARD}\n{text}".encode()).hexdigest()[:32]
    file = f"{name}-{key}-nvrtc{major}.{minor}-{architecture}.cubin"
    for folder in _folders():
        with contextlib.suppress(OSError):
            code = (folder / file).read_bytes()
            if code.startswith(_ELF):
                return code
    code = _compiled(text, architecture)
    for folder in _folders():
        if _kept(folder, file, code):
            break
    return code


class Kernels:
    """The kernels of one file, loaded for one device."""

    def __init__(self, name: str, device: torch.device) -> None:
        from cuda.core import Device, ObjectCode

        major, minor = torch.cuda.get_device_capability(device)
        Device(device.index).set_current()
        self._code = ObjectCode.from_cubin(cubin(name, f"sm_{major}{minor}"))
        self._device = device
        self._kernels: dict[str, Any] = {}

    def launch(self, kernel: str, blocks: int, threads: int, *arguments: Tensor | float | None) -> None:
        """Queue a kernel on torch's current stream; a tensor stands for its address, None for null.

        All parameters of a kernel are pointers or 64-bit numbers: `long long` for an int, `double` for a float.
        """
        from cuda.core import LaunchConfig, launch

        if kernel not in self._kernels:
            self._kernels[kernel] = self._code.get_kernel(kernel)
        values = [
            argument.data_ptr() if isinstance(argument, torch.Tensor) else 0 if argument is None else argument
            for argument in arguments
        ]
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            launch(stream, LaunchConfig(grid=blocks, block=threads), self._kernels[kernel], *values)


def kernels(name: str, device: torch.device) -> Kernels | None:
    """The kernels of a file on a tensor's device; None where PyTorch has to do."""
    if device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return None
    return _loaded(name, device.index)


@functools.cache
def _loaded(name: str, index: int) -> Kernels | None:
    try:
        import cuda.core  # noqa: F401 - whether it is there
    except ImportError:
        warnings.warn(
            "cuda-core is not installed: the fused kernels run in PyTorch, slower and with more memory; "
            f"pip install 'agentrl-core[cuda]', or set {SWITCH}=0 to leave it so",
            stacklevel=2,
        )
        return None
    return Kernels(name, torch.device("cuda", index))


def _compiled(text: str, architecture: str) -> bytes:
    from cuda.core import Program, ProgramOptions

    try:
        return bytes(Program(text, "c++", ProgramOptions(std=_STANDARD, arch=architecture)).compile("cubin").code)
    except Exception as error:
        raise UnsupportedError(
            f"the kernels do not compile for {architecture}: {error}; install a newer nvidia-cuda-nvrtc, or set "
            f"{SWITCH}=0 to run them in PyTorch"
        ) from error


def _folders() -> list[Path]:
    """Return the folders for machine code, the best first; only those that are this user's."""
    found = []
    with contextlib.suppress(RuntimeError):  # no home
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found.append(base / "agentrl_core" / "cuda")
    found.append(Path(tempfile.gettempdir()) / f"agentrl_core-{os.getuid()}" / "cuda")
    return [folder for folder in found if _mine(folder)]


def _mine(folder: Path) -> bool:
    """Return whether the folder exists or can be made, and no other user can write code into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return all(place.stat().st_uid == os.getuid() for place in (folder, folder.parent))
    except OSError:
        return False


def _kept(folder: Path, file: str, code: bytes) -> bool:
    """Write the code under its name atomically; return whether it worked."""
    try:
        handle, temporary = tempfile.mkstemp(dir=folder)
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(code)
        Path(temporary).replace(folder / file)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        return False
    return True
