"""One module per table of the paper: ``Config``, ``run(config) -> CSV`` and ``plot(csv) -> figure``.

``experiments.cli`` lists them by name and imports a module only when its experiment is asked for.
"""
