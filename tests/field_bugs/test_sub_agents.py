"""Rollouts of several agents in the statistics of their group."""

import agentrl_core as arl
from agentrl_core import advantage, recipes


def test_episode_votes_once_with_any_number_of_sub_agents():
    """rllm#924: rewards 1, 0, 0, 1 have the mean 1/2, also if the first rollout has two sub-agents."""
    forest = arl.Forest()
    forest.add_group(0, "task")

    def add(member, agent, episode, reward):
        trajectory = forest.start(0, member, agent=agent, episode=episode)
        forest.append(trajectory, [1, 2 + agent], kind="prompt")
        forest.append(trajectory, [10 + member, 20 + agent], kind="action", logprobs=[-0.5, -0.5])
        forest.finish(trajectory, reward=reward)
        return trajectory

    leader = add(0, 0, None, 1.0)
    add(0, 1, leader, 1.0)
    add(0, 2, leader, 1.0)
    for member, reward in ((1, 0.0), (2, 0.0), (3, 1.0)):
        add(member, 0, None, reward)
    centred = advantage.GroupRelative(scale="none", voter="episode")
    credited = recipes.GRPO.replace(advantage=centred).credit(forest.freeze())
    assert credited.column("advantage", "draw").tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, 0.5]
