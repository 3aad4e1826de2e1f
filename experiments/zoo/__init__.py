"""How every bundled checkpoint under ``repro/zoo`` was made: ``python -m experiments.zoo --help``."""
