"""GiGPO from raw text observations, returns included, beside verl-agent's file.

python bench/gigpo.py --verl-agent path/to/core_gigpo.py [--trajectories 1024] [--steps 50]
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import numpy as np
import torch
from common import Bench, load

from agentrl_core import advantage

GAMMA = 0.95


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verl-agent", metavar="PATH", help="verl-agent's gigpo/core_gigpo.py")
    parser.add_argument("--trajectories", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = options.trajectories * options.steps
    trajectories = np.repeat(np.arange(options.trajectories), options.steps)
    groups = trajectories // 8
    steps = np.tile(np.arange(options.steps), options.trajectories)
    rooms = [
        f"You are in room {room}. " + f"You see shelf {room}, drawer {room} and a door. " * 33 for room in range(60)
    ]
    observations = np.array([rooms[room] for room in rng.integers(0, 60, size=rows)], dtype=object)
    paid = np.where(rng.random(rows) < 0.1, rng.normal(size=rows), 0.0).astype(np.float32)
    totals = np.bincount(trajectories, paid)[trajectories].astype(np.float32)
    texts = observations.tolist()

    def ours() -> np.ndarray:
        return advantage.gigpo(totals, groups, trajectories, steps, texts, paid, gamma=GAMMA)

    bench = Bench("gigpo")
    work = f"GiGPO, {rows} steps from raw text"
    if options.verl_agent is None:
        bench.skipped(work, "give --verl-agent PATH")
    else:
        peer = load(options.verl_agent, "core_gigpo")
        uids = np.array([f"trajectory-{number}" for number in trajectories], dtype=object)
        names = np.array([f"group-{number}" for number in groups], dtype=object)
        # One token a row measures the peer's own work, without its broadcast over tokens.
        mask, tokens = torch.ones(rows, 1), torch.from_numpy(totals)[:, None]
        columns = {"rewards": paid, "traj_uid": uids, "active_masks": np.ones(rows)}
        data = SimpleNamespace(non_tensor_batch=columns, batch={"input_ids": mask})

        def theirs() -> np.ndarray:
            to_come = peer.compute_step_discounted_returns(data, GAMMA)
            result = peer.compute_gigpo_outcome_advantage(
                tokens, to_come, mask, observations, names, uids, mode="mean_norm"
            )
            return result[0][:, 0].numpy()

        bench.against(work, "verl-agent", ours, theirs, runs=3, goal=450.0)
    bench.write(rows=rows)


if __name__ == "__main__":
    main()
