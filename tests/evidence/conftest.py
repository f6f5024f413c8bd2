"""The programs of `bench/evidence` import each other by name, as they do when one of them is run."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "bench" / "evidence"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))
