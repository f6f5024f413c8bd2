"""Collect: select, rollout, reward, admit, until a batch is full; and the way back, from an update to the store."""

from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.collector import Collector
from agentrl_core.collect.evaluate import evaluate
from agentrl_core.collect.evaluation import Evaluation
from agentrl_core.rollout.progress import Progress

__all__ = ["BatchPolicy", "Collector", "Evaluation", "Progress", "evaluate"]
