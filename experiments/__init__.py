"""The paper's tables, a package each: config, measure (-> CSV), analysis, report, figure.

`experiments.cli` lists them by name and imports one only when it is asked for; `experiments.common` is what
they share, `experiments.zoo` makes the bundled checkpoints.
"""
