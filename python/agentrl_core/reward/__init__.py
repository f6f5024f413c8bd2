"""Phase reward: from what the environment paid to the score that training uses."""

from agentrl_core.reward.answers import AnswerAgreement
from agentrl_core.reward.best_of import MaxAtK
from agentrl_core.reward.checklists import Checklist
from agentrl_core.reward.comparisons import WinRate
from agentrl_core.reward.curves import Closeness, SoftTop
from agentrl_core.reward.dithering import Dither
from agentrl_core.reward.effort import ExplorationEffort
from agentrl_core.reward.fuse import Fuse
from agentrl_core.reward.gains import InformationGain
from agentrl_core.reward.implicit_process import ImplicitProcess
from agentrl_core.reward.length import LengthPenalty
from agentrl_core.reward.modes import ModeCost
from agentrl_core.reward.near_success import SuccessDistance
from agentrl_core.reward.objectives import BalancedSum
from agentrl_core.reward.outcome import Outcome
from agentrl_core.reward.process import checklist, implicit_rewards, information_gain, success_distance
from agentrl_core.reward.ranked import max_at_k, rank_agreement, top_gap, win_rates
from agentrl_core.reward.risk import tail_risk, tracked_quantiles
from agentrl_core.reward.risk_averse import RiskAverse
from agentrl_core.reward.search_effort import SearchEffort
from agentrl_core.reward.shape import dither, excess_penalty, gate, tiers, weighted_sum
from agentrl_core.reward.surplus import DropSurplus
from agentrl_core.reward.teams import TeamScore
from agentrl_core.reward.tiered import Tiers
from agentrl_core.reward.unscored import Unscored
from agentrl_core.reward.visits import FirstVisits
from agentrl_core.reward.votes import answer_clusters, cluster_votes

__all__ = [
    "AnswerAgreement",
    "BalancedSum",
    "Checklist",
    "Closeness",
    "Dither",
    "DropSurplus",
    "ExplorationEffort",
    "FirstVisits",
    "Fuse",
    "ImplicitProcess",
    "InformationGain",
    "LengthPenalty",
    "MaxAtK",
    "ModeCost",
    "Outcome",
    "RiskAverse",
    "SearchEffort",
    "SoftTop",
    "SuccessDistance",
    "TeamScore",
    "Tiers",
    "Unscored",
    "WinRate",
    "answer_clusters",
    "checklist",
    "cluster_votes",
    "dither",
    "excess_penalty",
    "gate",
    "implicit_rewards",
    "information_gain",
    "max_at_k",
    "rank_agreement",
    "success_distance",
    "tail_risk",
    "tiers",
    "top_gap",
    "tracked_quantiles",
    "weighted_sum",
    "win_rates",
]
