"""Lets the tests of this folder import `small_world`: with importlib mode pytest puts no folder on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
