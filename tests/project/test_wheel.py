"""The wheels that the Makefile built."""

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest
from uv import find_uv_bin

LARGEST_WHEEL = 6 * 1024 * 1024


@pytest.fixture(params=["wheels", "wheels-dev"])
def wheel(request: pytest.FixtureRequest, root: Path) -> Path:
    found = list((root / "target" / request.param).glob("agentrl_core-*.whl"))
    if not found:
        pytest.skip(f"no wheel in target/{request.param}")
    assert len(found) == 1, f"more than one wheel: {found}"
    return found[0]


def test_one_wheel_serves_every_python_from_3_11(wheel: Path) -> None:
    python, abi, platform = wheel.stem.split("-")[-3:]
    assert (python, abi) == ("cp311", "abi3")
    assert platform != "any"


def test_wheel_holds_the_typed_package_and_its_licences(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {
        "agentrl_core/__init__.py",
        "agentrl_core/_core.abi3.so",
        "agentrl_core/_core/__init__.pyi",
        "agentrl_core/_core/weight.pyi",
        "agentrl_core/py.typed",
        "agentrl_core/view/assets/main.js",
        "agentrl_core/view/assets/page.css",
    } <= set(names)
    for file in ("LICENSE", "THIRD_PARTY_LICENSES"):
        assert any(name.endswith(f"licenses/{file}") for name in names), file


def kernels(root: Path) -> dict[str, bytes]:
    """Return the CUDA sources by their names in the package."""
    sources = {f"agentrl_core/cuda/{path.name}": path.read_bytes() for path in (root / "cuda").glob("*.cu")}
    assert sources
    return sources


def test_wheel_holds_the_kernels(wheel: Path, root: Path) -> None:
    with ZipFile(wheel) as archive:
        assert {name: archive.read(name) for name in archive.namelist() if name.endswith(".cu")} == kernels(root)


def test_source_archive_holds_the_kernels(root: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "maturin",
        "sdist",
        "--manifest-path",
        str(root / "crates/agentrl-python/Cargo.toml"),
    ]
    completed = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames() if name.endswith(".cu")}
        contents = {name.partition("/python/")[2]: file.read() for name, file in files.items() if file is not None}
    assert contents == kernels(root)


def test_wheel_works_in_an_empty_environment(wheel: Path, root: Path, tmp_path: Path) -> None:
    uv, python = find_uv_bin(), tmp_path / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    command = [python, "-I", root / "tests" / "smoke.py"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith(" works\n")


def test_release_wheel_is_small(wheel: Path, measured: Callable[[str], None]) -> None:
    size = wheel.stat().st_size
    measured(f"{wheel.parent.name}: {size / 2**20:.1f} MiB")
    if wheel.parent.name == "wheels":
        assert size <= LARGEST_WHEEL
        with ZipFile(wheel) as archive:
            (library,) = (name for name in archive.namelist() if name.endswith(".so"))
            assert b".symtab" not in archive.read(library), "the names of functions were not stripped"


def test_a_recompressed_wheel_has_the_same_files(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.whl"
    files = {"a/one.py": (root / "tests/smoke.py").read_bytes(), "a/empty.py": b"", "a/RECORD": bytes(range(256)) * 40}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(ZipInfo(name, (2020, 1, 2, 3, 4, 6)), content, ZIP_DEFLATED)
    before = path.stat().st_size
    subprocess.run([sys.executable, root / "tools/recompress_wheel.py", path], check=True)
    assert path.stat().st_size < before
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist()} == files
        assert {info.date_time for info in archive.infolist()} == {(2020, 1, 2, 3, 4, 6)}
