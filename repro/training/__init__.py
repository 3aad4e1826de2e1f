"""GRPO training: recipe, policy, experience, trainer, and what a run leaves behind."""
