"""How close each scheme's gradient is to the exact one, per group."""
