"""Make the programs of `bench/evidence` importable by name, as in a direct run."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "bench" / "evidence"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
