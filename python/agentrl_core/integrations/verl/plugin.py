"""Register every recipe that fits with verl, which loads this module by the entry point group `verl.plugins`."""

from agentrl_core.integrations.verl.registry import register_all

register_all()
