"""Where episodes run: in threads, in processes, or in Ray actors."""
