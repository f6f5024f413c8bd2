"""Phase select: which tasks to roll out, how often, and which finished groups to admit into the batch."""

from agentrl_core.select.admission import AcceptAll, Admission, DynamicSampling
from agentrl_core.select.allocator import Allocator, GreedyAllocator
from agentrl_core.select.composed import ComposedSelector
from agentrl_core.select.curriculum import Curriculum, Quota
from agentrl_core.select.pool import Pool
from agentrl_core.select.pool_filter import PoolFilter
from agentrl_core.select.prompt_bandit import PromptBandit
from agentrl_core.select.retry_queue import RetryQueue
from agentrl_core.select.sampler import ProportionalSampler, Sampler, TopSampler
from agentrl_core.select.selector import Selection, SelectionRequest, Selector, Uniform
from agentrl_core.select.success_band import Band
from agentrl_core.select.success_trackers import Beta, RecentVisits
from agentrl_core.select.survey import Survey
from agentrl_core.select.task_outcomes import TaskOutcomes
from agentrl_core.select.task_score import NearTarget, OutcomeVariance, TaskScore
from agentrl_core.select.tracker import Candidates, Tracker
from agentrl_core.select.value_trackers import PredictedSuccess

__all__ = [
    "AcceptAll",
    "Admission",
    "Allocator",
    "Band",
    "Beta",
    "Candidates",
    "ComposedSelector",
    "Curriculum",
    "DynamicSampling",
    "GreedyAllocator",
    "NearTarget",
    "OutcomeVariance",
    "Pool",
    "PoolFilter",
    "PredictedSuccess",
    "PromptBandit",
    "ProportionalSampler",
    "Quota",
    "RecentVisits",
    "RetryQueue",
    "Sampler",
    "Selection",
    "SelectionRequest",
    "Selector",
    "Survey",
    "TaskOutcomes",
    "TaskScore",
    "TopSampler",
    "Tracker",
    "Uniform",
]
