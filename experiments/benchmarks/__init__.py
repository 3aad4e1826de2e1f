"""The suite's own speed beside a plain loop."""
