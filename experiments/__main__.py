"""``python -m experiments``: the command ``repro``."""

from experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
