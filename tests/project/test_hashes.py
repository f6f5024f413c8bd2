"""One function makes numbers from texts; other files take digests of contents only."""

import ast
from pathlib import Path

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


def functions_of_hashlib(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if "hashlib" in (alias.name, getattr(node, "module", None))
    ]
    assert set(imported) <= {"hashlib"}, f"{path}: write `import hashlib`"
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hashlib"
    }


def test_one_file_makes_numbers_and_the_others_digests() -> None:
    found = {str(path.relative_to(PACKAGE)): functions_of_hashlib(path) for path in PACKAGE.rglob("*.py")}
    used = {path: names for path, names in found.items() if names}
    assert used.pop(OF_NUMBERS) == {"blake2b"}
    assert used == {path: {"sha256"} for path in DIGESTS}
