"""``python -m repro``: the command ``repro`` (`experiments.cli`) where its console script is not at hand."""

import runpy

runpy.run_module("experiments", run_name="__main__", alter_sys=True)
