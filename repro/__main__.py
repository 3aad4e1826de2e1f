"""``python -m repro``: the command ``repro`` where its console script is not at hand, as under torchrun."""

from repro.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
