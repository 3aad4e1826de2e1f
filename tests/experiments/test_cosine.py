"""The cosine experiment end to end on a random FLUX: what it must give, resume, and refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import build_flux

from experiments.cli import main
from experiments.common.inputs import load_prompts
from experiments.cosine import figure as cosine_figure
from experiments.cosine import measure as cosine
from repro.results import HIDDEN, provenance_path, read


def redness(images, prompts):
    """A reward that differs between images."""
    return images[:, 0].mean(dim=(1, 2))


def constant(images, prompts):
    """A reward that teaches nothing."""
    return [1.0] * len(images)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> cosine.Config:
    folder = tmp_path_factory.mktemp("cosine")
    flux_folder = build_flux(folder / "flux")
    prompts = folder / "prompts.txt"
    prompts.write_text("red heart\n\ndog face\nrocket\n")
    return cosine.Config(
        model=str(flux_folder),
        variants=("base",),
        prompts=2,
        images=2,
        samples=1,
        sampling_steps=9,
        reward=f"{__name__}:redness",
        prompts_file=prompts,
        out=folder / "first",
    )


@pytest.fixture(scope="module")
def csv(config: cosine.Config) -> Path:
    return cosine.run(config)


def test_table_has_every_unit_and_scheme(csv: Path) -> None:
    table = read(csv)
    assert set(table.scheme) == {
        "jagg-time",
        "jagg-index",
        "endpoints-own",
        "endpoints-sum",
        "endpoints-half",
        "endpoints-nearest",
    }
    # per group: 2 prompts, 1 image of each, the batch, and the batch without each of 2 blocks
    counts = table.groupby(["group", "scheme"]).unit.value_counts().unstack()
    assert (counts == pd.Series({"batch": 1, "batch-without": 2, "prompt": 2, "sample": 2})).all().all()
    assert table.cosine.between(-1 - 1e-9, 1 + 1e-9).all()
    assert table.sigma_span.min() > 0 and table.sigma_first.is_monotonic_decreasing
    assert provenance_path(csv).exists()


def test_endpoints_own_has_no_middle(csv: Path) -> None:
    """Its middles are dropped, so their cosine is undefined and not a number that could be averaged."""
    table = read(csv)
    assert table[table.scheme == "endpoints-own"].middle_cosine.isna().all()
    assert table[table.scheme == "jagg-time"].middle_cosine.notna().all()


def test_same_seed_same_bytes(config: cosine.Config, csv: Path) -> None:
    again = cosine.run(replace(config, out=csv.parent.parent.parent / "second"))
    assert again.read_bytes() == csv.read_bytes()


def test_resumes_without_losing_or_repeating_a_row(config: cosine.Config, csv: Path) -> None:
    whole = csv.read_bytes()
    table = read(csv)
    lines = whole.splitlines(keepends=True)
    csv.write_bytes(b"".join(lines[: 1 + int((table.group == 0).sum())]))  # as if stopped after group 0
    assert cosine.run(config).read_bytes() == whole


def test_groups_of_two_are_exact(config: cosine.Config) -> None:
    """W = 2 has no middle step, so JAGG is the exact gradient: on a real DiT, through the whole pipeline."""
    csv = cosine.run(replace(config, group_size=2, samples=0, out=config.out.parent / "pairs"))
    table = read(csv)
    jagg = table[table.scheme.str.startswith("jagg")]
    assert np.allclose(jagg.cosine, 1, atol=1e-6) and (jagg.relative_error < 1e-4).all()


def test_other_seed_other_numbers(config: cosine.Config, csv: Path) -> None:
    other = cosine.run(replace(config, seed=1, out=config.out.parent / "seed"))
    assert not np.allclose(read(other).cosine, read(csv).cosine)


def test_figure_needs_the_table_alone(csv: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / csv.name
    copy.parent.mkdir()
    copy.write_bytes(csv.read_bytes())
    figure = cosine_figure.plot(copy)
    assert figure.parent == copy.parent and figure.read_bytes().startswith(b"\x89PNG")


def test_prompts_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("caf\u00e9\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        load_prompts(file, 1, 0)


def test_no_variants_are_refused(config: cosine.Config) -> None:
    with pytest.raises(ValueError, match="names none"):
        cosine.run(replace(config, variants=()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "nowhere"], "there is no model nowhere"),
        (["--group-size", "3"], "W=3"),
        (["--variants", "W-5"], "variant W-5"),
        (["--prompts", "5000"], "5000 prompts were asked for"),
        (["--prompts", "1"], "2 or more prompts"),
        (["--device", "abacus"], "abacus"),
        (["--parameters", "("], "regular expression"),
        (["--parameters", "no_such_layer"], "matches no parameter"),
        (["--reward", "pickscore:/nowhere"], "/nowhere"),
        (["--reward", f"{__name__}:constant"], "equal rewards"),
        (["--eta", "0"], "eta"),
    ],
)
def test_bad_input_is_one_line(
    options: list[str],
    words: str,
    config: cosine.Config,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = {
        "--model": config.model,
        "--reward": config.reward,
        "--prompts": "2",
        "--images": "2",
        "--samples": "1",
        "--sampling-steps": "9",
        "--prompts-file": str(config.prompts_file),
        "--out": str(tmp_path / "out"),
    }
    given.update(zip(options[::2], options[1::2], strict=True))
    command = ["run", "cosine", "--variants", "base", *(word for pair in given.items() for word in pair)]
    assert main(command) == 2
    complaint = [line for line in capfd.readouterr().err.splitlines() if line.startswith("repro:")]
    assert len(complaint) == 1 and words in complaint[0]
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file() and HIDDEN not in p.parts]
