"""The reference loop of `agentrl train`, meant to be copied, and the model it starts from."""
