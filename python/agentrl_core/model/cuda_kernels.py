"""CUDA kernels from source: compiled by NVRTC on first use, cached on disk, launched on torch's current stream.

The sources are `agentrl_core/cuda/*.cu`. NVIDIA's package cuda-core compiles, loads and launches them. If it is not
installed, or AGENTRL_CUDA is 0, there are no kernels and the same operations run in PyTorch.
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
    """Return the source text of a kernel file."""
    return files("agentrl_core").joinpath("cuda", f"{name}.cu").read_text(encoding="utf-8")


def cubin(name: str, architecture: str) -> bytes:
    """Return the machine code of a kernel file, from the cache or compiled and written to it.

    The cache is `agentrl_core/cuda` in XDG_CACHE_HOME or ~/.cache; if that is not writable, a folder of the user among
    the temporary files. The name of a cached file has a hash of all that its content depends on, and it is written
    atomically.

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
        """Queue a kernel on torch's current stream; a tensor is passed as its address, None as a null pointer.

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
    """Return the kernels of a file for a device; None if the operation has to run in PyTorch."""
    if device.type != "cuda" or os.environ.get(SWITCH) == "0":
        return None
    return _loaded(name, device.index)


@functools.cache
def _loaded(name: str, index: int) -> Kernels | None:
    try:
        import cuda.core  # noqa: F401 - to check that it is installed
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
    """Return the folders for machine code in order of preference; only folders of this user."""
    folders = []
    with contextlib.suppress(RuntimeError):  # no home folder
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folders.append(base / "agentrl_core" / "cuda")
    folders.append(Path(tempfile.gettempdir()) / f"agentrl_core-{os.getuid()}" / "cuda")
    return [folder for folder in folders if _mine(folder)]


def _mine(folder: Path) -> bool:
    """Return whether a folder exists or can be created, and this user owns the folder and its parent."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return all(place.stat().st_uid == os.getuid() for place in (folder, folder.parent))
    except OSError:
        return False


def _kept(folder: Path, file: str, code: bytes) -> bool:
    """Write machine code to the cache folder atomically, and return whether that worked."""
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
