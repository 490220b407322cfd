"""A learner's functions to the ranks and values back, as copies; what cannot go, and why."""
