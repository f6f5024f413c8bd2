"""`python -m agentrl_core` is `agentrl`."""

import sys

from agentrl_core.cli import main

sys.exit(main())
