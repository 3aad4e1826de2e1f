"""The bundled scorers on a batch of images of the bundled models' size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro import zoo
from repro.rewards import load


@pytest.mark.parametrize("spec", [zoo.TRAINING_SCORER, *zoo.EVALUATION_SCORERS])
def test_scorer(timed: Any, pytestconfig: pytest.Config, spec: str) -> None:
    folder = zoo.resolve(spec.partition(":")[2])
    if folder is None or not folder.is_dir():
        pytest.skip(f"{spec} is not in this tree")
    scorer = load(spec, pytestconfig.getoption("--device"))
    samples = pytestconfig.getoption("--batch")
    images = torch.rand(samples, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    timed(lambda: scorer(images, ["noto red apple"] * samples))
