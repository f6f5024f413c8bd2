"""Phase select: which tasks to roll out, and which finished groups to admit into the batch."""

from agentrl_core.select.admission import AcceptAll, Admission, DynamicSampling
from agentrl_core.select.band import Band
from agentrl_core.select.uniform import Selector, Uniform

__all__ = ["AcceptAll", "Admission", "Band", "DynamicSampling", "Selector", "Uniform"]
