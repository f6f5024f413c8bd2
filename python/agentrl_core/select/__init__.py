"""Phase select: which tasks to roll out, and which finished groups to admit into the batch."""

from agentrl_core.select.admission import AcceptAll, Admission, DynamicSampling
from agentrl_core.select.band import Band
from agentrl_core.select.pool import Pool
from agentrl_core.select.selection import Selection, Wanted
from agentrl_core.select.selector import Selector
from agentrl_core.select.uniform import Uniform

__all__ = [
    "AcceptAll",
    "Admission",
    "Band",
    "DynamicSampling",
    "Pool",
    "Selection",
    "Selector",
    "Uniform",
    "Wanted",
]
