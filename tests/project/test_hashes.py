"""One function makes numbers from texts; other files take digests of contents, or checksums."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "agentrl_core"
OF_NUMBERS = "_util/stable_hash.py"
DIGESTS = {
    "agents/endpoint.py": "a key that is stored only as its digest",
    "agents/history_digest.py": "which history a request continues",
    "agents/records.py": "the images of a record",
    "agents/routes.py": "a request that a client repeats",
    "engine/engine_images.py": "images and tokens of a prompt",
    "engine/teacher_server.py": "the file of a stored answer",
    "env/image.py": "the content of an image",
    "env/miniwob.py": "the content of a page",
    "integrations/trajectories/image_blobs.py": "the content of an image",
    "model/cuda_kernels.py": "the source of a kernel",
    "model/images.py": "the content of an image",
    "model/synthetic_image_rows.py": "the content of an image",
    "view/page.py": "scripts that the page may run",
}
"""Files with SHA-256, which identifies a content, with the content."""

CHECKSUMS = {
    "env/png.py": "the format PNG",
    "env/reasoning_gym.py": "the fact that numbers equal answers alike, in 24 bits for f32",
    "integrations/trajectories/readers/files.py": "the format ZIP",
}
"""Files with CRC-32, with its use."""

MAKE_NUMBERS = {"int", "int.from_bytes", "np.frombuffer"}
"""Functions that make a number from a digest."""


def hash_functions(source: str) -> set[str]:
    """Return the hash functions that a source calls, and in a source with digests the functions that make numbers.

    Python's `hash` counts outside of `__hash__`, since its result differs between processes.
    """
    tree = ast.parse(source)
    of_hashlib = {"hashlib"}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_hashlib |= {alias.asname for alias in node.names if alias.name == "hashlib" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in ("hashlib", "zlib", "binascii"):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and node.attr in ("crc32", "adler32"):
            names.add(node.attr)
    names |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in of_hashlib
    }
    allowed = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for part in ast.walk(node)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(isinstance(call.func, ast.Name) and call.func.id == "hash" and id(call) not in allowed for call in calls):
        names.add("hash")
    if names & {"sha256", "blake2b"}:
        of_bytes = [call for call in calls if ast.unparse(call.func) != "int" or len(call.args) == 2]
        names |= {ast.unparse(call.func) for call in of_bytes} & MAKE_NUMBERS
    return names


def test_one_file_makes_numbers_and_the_others_digests() -> None:
    found = {str(path.relative_to(PACKAGE)): hash_functions(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    used = {path: names for path, names in found.items() if names}
    assert used.pop(OF_NUMBERS) == {"blake2b", "int.from_bytes"}
    assert used == {path: {"sha256"} for path in DIGESTS} | {path: {"crc32"} for path in CHECKSUMS}


@pytest.mark.parametrize(
    ("added", "names"),
    [
        ("import hashlib as h\nh.md5(b'')", {"md5"}),
        ("from hashlib import blake2b", {"blake2b"}),
        ("hashlib.new('md5')", {"new"}),
        ("int.from_bytes(hashlib.sha256(b'').digest(), 'little')", {"int.from_bytes"}),
        ("int(hashlib.sha256(b'').hexdigest(), 16)", {"int"}),
        ("np.frombuffer(hashlib.sha256(b'').digest(), np.uint64)", {"np.frombuffer"}),
        ("hash('text')", {"hash"}),
        ("zlib.adler32(b'')", {"adler32"}),
        ("from zlib import crc32", {"crc32"}),
    ],
)
def test_another_hash_in_a_file_is_found(added: str, names: set[str]) -> None:
    source = (PACKAGE / "env/image.py").read_text("utf-8")
    assert hash_functions(source) == {"sha256"}
    assert hash_functions(f"{source}\n{added}\n") == {"sha256", *names}
