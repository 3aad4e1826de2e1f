"""Time per training step, scheme by scheme, beside the cost model's prediction."""
