"""What verl loads when it is imported, by the entry point group `verl.plugins`: every recipe that fits, registered."""

from agentrl_core.integrations.verl.registry import register_all

register_all()
