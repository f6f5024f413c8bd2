"""Lets the tests of this folder import each other: with importlib mode pytest puts no folder on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
