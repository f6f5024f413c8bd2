"""Phase reward: from what the environment paid to the score that training uses."""

from agentrl_core.reward.answers import AnswerAgreement
from agentrl_core.reward.best_of import MaxAtK
from agentrl_core.reward.comparisons import WinRate
from agentrl_core.reward.dithering import Dither
from agentrl_core.reward.fuse import Fuse
from agentrl_core.reward.gains import InformationGain
from agentrl_core.reward.implicit_process import ImplicitProcess
from agentrl_core.reward.length import LengthPenalty
from agentrl_core.reward.near_success import SuccessDistance
from agentrl_core.reward.outcome import Outcome
from agentrl_core.reward.search_effort import SearchEffort
from agentrl_core.reward.tiered import Tiers

__all__ = [
    "AnswerAgreement",
    "Dither",
    "Fuse",
    "ImplicitProcess",
    "InformationGain",
    "LengthPenalty",
    "MaxAtK",
    "Outcome",
    "SearchEffort",
    "SuccessDistance",
    "Tiers",
    "WinRate",
]
