"""Phase reward: from what the environment paid to the score that training uses."""

from agentrl_core.reward.distance import SuccessDistance
from agentrl_core.reward.edits import edit_distances
from agentrl_core.reward.group_comparison import MaxAtK, TeamScore, WinRate, rank_agreement
from agentrl_core.reward.majority_vote import AnswerAgreement, answer_clusters, cluster_votes
from agentrl_core.reward.outcome import DropSurplus, OutcomeScore, Unscored
from agentrl_core.reward.process import Checklist, FirstVisits, ImplicitProcess, InformationGain
from agentrl_core.reward.risk import RiskAverse
from agentrl_core.reward.shape import (
    CombineReward,
    CompressHigh,
    GaussianProximity,
    LengthPenalty,
    NoiseReward,
    RoundUpReward,
)
from agentrl_core.reward.temperature import UnitTemperature
from agentrl_core.reward.turn_rewards import TurnEndReward

__all__ = [
    "AnswerAgreement",
    "Checklist",
    "CombineReward",
    "CompressHigh",
    "DropSurplus",
    "FirstVisits",
    "GaussianProximity",
    "ImplicitProcess",
    "InformationGain",
    "LengthPenalty",
    "MaxAtK",
    "NoiseReward",
    "OutcomeScore",
    "RiskAverse",
    "RoundUpReward",
    "SuccessDistance",
    "TeamScore",
    "TurnEndReward",
    "UnitTemperature",
    "Unscored",
    "WinRate",
    "answer_clusters",
    "cluster_votes",
    "edit_distances",
    "rank_agreement",
]
