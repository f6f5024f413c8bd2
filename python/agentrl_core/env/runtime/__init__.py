"""Run episodes in threads, processes or Ray actors."""
