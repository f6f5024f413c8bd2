"""Collect batches: select, rollout, reward and admit until a batch is full; after its update, close the iteration."""

from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.collector import Collector
from agentrl_core.collect.evaluate import evaluate
from agentrl_core.collect.evaluation_result import Evaluation
from agentrl_core.rollout.progress import Progress

__all__ = ["BatchPolicy", "Collector", "Evaluation", "Progress", "evaluate"]
