"""Phase select: which tasks to roll out, how often, and which finished groups to admit into the batch."""

from agentrl_core.select.admission import AcceptAll, Admission, DynamicSampling
from agentrl_core.select.allocator import (
    Allocator,
    BanditAllocator,
    DecayAllocator,
    GreedyAllocator,
    ProportionalAllocator,
)
from agentrl_core.select.band import Band
from agentrl_core.select.composed import ComposedSelector
from agentrl_core.select.curriculum import Curriculum, Quota
from agentrl_core.select.pool import Pool
from agentrl_core.select.pool_filter import PoolFilter
from agentrl_core.select.prompt_bandit import PromptBandit
from agentrl_core.select.retry_queue import RetryQueue
from agentrl_core.select.sampler import ProportionalSampler, Sampler, TopSampler
from agentrl_core.select.selection import Selection, SelectionRequest
from agentrl_core.select.selector import Selector
from agentrl_core.select.success_trackers import Beta, RecentVisits
from agentrl_core.select.survey import Survey
from agentrl_core.select.task_score import LearningSignal, Linear, NearTarget, OutcomeVariance, TaskScore
from agentrl_core.select.tracker import Tracker
from agentrl_core.select.uniform import Uniform
from agentrl_core.select.value_trackers import LearningProgress, LogMeanExp, PoolColumn, PredictedSuccess, VisitCount

__all__ = [
    "AcceptAll",
    "Admission",
    "Allocator",
    "Band",
    "BanditAllocator",
    "Beta",
    "ComposedSelector",
    "Curriculum",
    "DecayAllocator",
    "DynamicSampling",
    "GreedyAllocator",
    "LearningProgress",
    "LearningSignal",
    "Linear",
    "LogMeanExp",
    "NearTarget",
    "OutcomeVariance",
    "Pool",
    "PoolColumn",
    "PoolFilter",
    "PredictedSuccess",
    "PromptBandit",
    "ProportionalAllocator",
    "ProportionalSampler",
    "Quota",
    "RecentVisits",
    "RetryQueue",
    "Sampler",
    "Selection",
    "SelectionRequest",
    "Selector",
    "Survey",
    "TaskScore",
    "TopSampler",
    "Tracker",
    "Uniform",
    "VisitCount",
]
