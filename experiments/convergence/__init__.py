"""Whether each scheme's reward follows the exact one's over training."""
