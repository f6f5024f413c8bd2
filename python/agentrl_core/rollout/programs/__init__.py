"""Rollout programs: each one a way to sample the trajectories of a task."""
