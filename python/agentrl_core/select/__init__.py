"""Phase select: which tasks to roll out, how often, and which finished groups to admit into the batch."""

from agentrl_core.select.admission import AcceptAll, Admission, DynamicSampling
from agentrl_core.select.allocator import Allocator, DualArms, Falling, Greedy, Shared
from agentrl_core.select.band import Band
from agentrl_core.select.composed import Tasks
from agentrl_core.select.curriculum import Quota, Stages
from agentrl_core.select.pool import Pool
from agentrl_core.select.pool_filter import Kept
from agentrl_core.select.prompt_bandit import Arms
from agentrl_core.select.retry_queue import Failed
from agentrl_core.select.sampler import Proportional, Sampler, Top
from agentrl_core.select.selection import Selection, Wanted
from agentrl_core.select.selector import Selector
from agentrl_core.select.success_trackers import Beta, RecentVisits
from agentrl_core.select.survey import Survey
from agentrl_core.select.task_outcomes import Visits
from agentrl_core.select.task_score import Information, Scaled, Score, Spread, Toward
from agentrl_core.select.tracker import Candidates, Tracker
from agentrl_core.select.uniform import Uniform
from agentrl_core.select.value_trackers import Annotated, LearningProgress, LogMeanExp, Predicted, Tried

__all__ = [
    "AcceptAll",
    "Admission",
    "Allocator",
    "Annotated",
    "Arms",
    "Band",
    "Beta",
    "Candidates",
    "DualArms",
    "DynamicSampling",
    "Failed",
    "Falling",
    "Greedy",
    "Information",
    "Kept",
    "LearningProgress",
    "LogMeanExp",
    "Pool",
    "Predicted",
    "Proportional",
    "Quota",
    "RecentVisits",
    "Sampler",
    "Scaled",
    "Score",
    "Selection",
    "Selector",
    "Shared",
    "Spread",
    "Stages",
    "Survey",
    "Tasks",
    "Top",
    "Toward",
    "Tracker",
    "Tried",
    "Uniform",
    "Visits",
    "Wanted",
]
