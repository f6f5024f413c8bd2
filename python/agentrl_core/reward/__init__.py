"""Phase reward: turns the environment's reward into the score that training uses."""

from agentrl_core.reward.group_comparison import WinRate
from agentrl_core.reward.majority_vote import AnswerAgreement
from agentrl_core.reward.outcome import OutcomeScore, Unscored
from agentrl_core.reward.process import ImplicitProcess
from agentrl_core.reward.sampling_temperature import UnitTemperature
from agentrl_core.reward.shaping import CombineReward, GaussianProximity, LengthPenalty
from agentrl_core.reward.turn_rewards import TurnEndReward

__all__ = [
    "AnswerAgreement",
    "CombineReward",
    "GaussianProximity",
    "ImplicitProcess",
    "LengthPenalty",
    "OutcomeScore",
    "TurnEndReward",
    "UnitTemperature",
    "Unscored",
    "WinRate",
]
