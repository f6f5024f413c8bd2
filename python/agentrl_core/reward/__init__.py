"""Phase reward: from what the environment paid to the score that training uses."""

from agentrl_core.reward.distance import SuccessDistance, success_distance
from agentrl_core.reward.edits import edit_distances
from agentrl_core.reward.group_comparison import (
    MaxAtK,
    TeamScore,
    WinRate,
    max_at_k,
    rank_agreement,
    top_gap,
    win_rates,
)
from agentrl_core.reward.majority_vote import AnswerAgreement, answer_clusters, cluster_votes
from agentrl_core.reward.outcome import DropSurplus, OutcomeScore, Unscored
from agentrl_core.reward.process import (
    Checklist,
    FirstVisits,
    ImplicitProcess,
    InformationGain,
    checklist,
    implicit_rewards,
    information_gain,
)
from agentrl_core.reward.risk import RiskAverse, tail_risk, tracked_quantiles
from agentrl_core.reward.shape import (
    CombineReward,
    CompressHigh,
    GaussianProximity,
    LengthPenalty,
    NoiseReward,
    RoundUpReward,
    add_noise,
    excess_penalty,
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
    "add_noise",
    "answer_clusters",
    "checklist",
    "cluster_votes",
    "edit_distances",
    "excess_penalty",
    "implicit_rewards",
    "information_gain",
    "max_at_k",
    "rank_agreement",
    "success_distance",
    "tail_risk",
    "top_gap",
    "tracked_quantiles",
    "win_rates",
]
