"""How every figure is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

COLOURS = 256
"""Of a chart's PNG: more than it uses, and a third of the bytes of one with all there are."""


def save(figure: Any, path: Path, dpi: int = 150, pictures: bool = False) -> Path:
    """Write a figure as a PNG, the same bytes for the same figure, and close it; returns the path.

    Args:
        figure: matplotlib's.
        path: ends in .png.
        dpi: pixels per inch.
        pictures: whether it shows pictures, which need all colours.
    """
    import matplotlib.pyplot as plt
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, metadata={"Software": None})
    plt.close(figure)
    image = Image.open(drawn).convert("RGB")
    if not pictures:
        image = image.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    return path
