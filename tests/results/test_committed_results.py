"""What is in results/: whole tables with their provenance, and numbers that follow from each other."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from experiments.ablation import measure as ablation
from experiments.allgather import measure as allgather
from experiments.benchmarks import report as benchmarks
from experiments.convergence import measure as convergence
from experiments.cosine import measure as cosine
from experiments.speedup import measure as speedup
from experiments.convergence.arms import ALGORITHMS
from experiments.convergence.analysis import complete
from repro.provenance import ROOT
from experiments.speedup.analysis import AGREEMENT, cells
from repro import zoo
from repro.core.cost import CostModel, Counts
from repro.results import Table, provenance_path, read

TABLES = {
    "cosine": (cosine.COLUMNS, cosine.KEY),
    "speedup": (speedup.COLUMNS, speedup.KEY),
    "speedup-laps": (speedup.LAP_COLUMNS, speedup.LAP_KEY),
    "benchmarks": (benchmarks.COLUMNS, benchmarks.KEY),
    "allgather": (allgather.COLUMNS, allgather.KEY),
    "ablation": (ablation.COLUMNS, ablation.KEY),
    "ablation-efficiency": (ablation.EFFICIENCY_COLUMNS, ablation.EFFICIENCY_KEY),
    **{Path(name).stem: layout for name, layout in convergence.TABLES.items()},
}
TRAINED = [f"{model}-{algorithm}" for model in zoo.MODELS for algorithm in ALGORITHMS]


def _committed() -> list[Path]:
    """What a clone holds, and not what runs have left there since."""
    listed = subprocess.run(
        ["git", "ls-files", "results/*.csv", "results/*.csv.gz"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return sorted(ROOT / line for line in listed.stdout.splitlines())


COMMITTED = _committed()
pytestmark = pytest.mark.skipif(not COMMITTED, reason="not a git checkout")


def of(name: str) -> list[Path]:
    return [csv for csv in COMMITTED if csv.name == name]


def stem(csv: Path) -> str:
    return csv.name.split(".")[0]


def folder(csv: Path) -> str:
    return str(csv.parent.relative_to(ROOT / "results"))


def test_every_reported_result_has_its_tables() -> None:
    found = {(folder(csv), stem(csv)) for csv in COMMITTED}
    wanted = {(model, table) for model in zoo.MODELS for table in ("cosine", "speedup", "speedup-laps")}
    wanted |= {(run, table) for run in TRAINED for table in ("ablation", *map(lambda name: Path(name).stem, convergence.TABLES))}
    wanted |= {("allgather", "allgather"), ("benchmarks", "benchmarks")}
    assert wanted <= found
    assert {stem for _, stem in found} == set(TABLES)


@pytest.mark.parametrize("csv", COMMITTED, ids=lambda csv: f"{folder(csv)}/{stem(csv)}")
def test_tables_are_whole_and_say_where_they_come_from(csv: Path, tmp_path: Path) -> None:
    beside = provenance_path(csv)
    told = json.loads(beside.read_text())
    assert not told["dirty"] and len(told["commit"]) == 40
    assert told["command"] and told["date"] and told["config"] and told["versions"]["torch"]
    columns, key = TABLES[stem(csv)]
    for path in (csv, beside):
        shutil.copy(path, tmp_path)
    # Checks columns, types, keys and line ends, as a run that would resume it.
    assert len(Table(tmp_path / csv.name, columns, key, provenance=told))


@pytest.mark.parametrize("csv", of("speedup.csv"), ids=folder)
def test_predictions_follow_from_the_unit_and_the_counts(csv: Path) -> None:
    for row in read(csv).itertuples():
        model = CostModel(row.backward_factor, float(row.checkpointing))
        price = model.price(Counts(row.forwards, row.recomputes, row.backwards))
        assert row.predicted_update_s == pytest.approx(row.parts * row.forward_s * price, rel=1e-6)


@pytest.mark.parametrize("csv", of("speedup-laps.csv.gz"), ids=folder)
def test_laps_are_whole_updates(csv: Path) -> None:
    whole = read(csv.with_name("speedup.csv")).set_index(list(speedup.KEY)).update_s
    laps = read(csv)[lambda rows: rows.repetition == 0].groupby(list(speedup.KEY))["seconds"].sum()
    pd.testing.assert_series_equal(laps.sort_index(), whole.sort_index(), check_names=False, rtol=2e-2)


@pytest.mark.parametrize("csv", of("speedup.csv"), ids=folder)
def test_the_cost_model_holds_where_the_network_is_what_takes_time(csv: Path) -> None:
    clear = [cell for cell in cells(csv) if cell.scheme != "exact" and cell.clear]
    assert len(clear) > 20 and {cell.setting.algorithm for cell in clear} == set(ALGORITHMS)
    assert all(abs(cell.error) <= AGREEMENT for cell in clear)


@pytest.mark.parametrize("csv", of("convergence.csv"), ids=folder)
def test_arms_of_a_seed_share_their_start_and_runs_their_steps(csv: Path) -> None:
    table = complete(csv)
    assert len(table) == len(read(csv)), "a run is not complete"
    start = table[table.step == 0].groupby(["seed", "metric"])["value"]
    # Machines round differently, and a table's cells may be of several.
    assert (start.max() - start.min() <= 1e-5 * start.max().abs()).all()
    training = read(csv.with_name("convergence-training.csv"))
    timings = read(csv.with_name("convergence-timings.csv"))
    run = ["regime", "arm", "lr_factor", "seed"]
    last = table.groupby(run)["step"].max()
    for steps in (training, timings):
        pd.testing.assert_series_equal(steps.groupby(run).size(), last, check_names=False)


@pytest.mark.parametrize("csv", of("ablation.csv"), ids=folder)
def test_contrasts_are_those_of_the_runs_beside_them(csv: Path, tmp_path: Path) -> None:
    for path in csv.parent.glob("convergence*.*"):
        shutil.copy(path, tmp_path)
    margin = json.loads(provenance_path(csv).read_text())["config"]["margin"]
    ablation.write(tmp_path / "convergence.csv", ablation.Config(margin=margin))
    for name in ("ablation.csv", "ablation-efficiency.csv"):
        pd.testing.assert_frame_equal(read(tmp_path / name), read(csv.with_name(name)), rtol=1e-6)


@pytest.mark.parametrize("csv", of("benchmarks.csv"), ids=folder)
def test_the_update_is_as_fast_as_was_asked_for(csv: Path) -> None:
    table = read(csv).set_index("benchmark")
    assert set(benchmarks.BARS) <= set(table.index)
    pd.testing.assert_series_equal(
        table.times_as_fast, table.plain_loop_s / table.median_s, check_names=False, rtol=1e-6
    )
    for name, bar in benchmarks.BARS.items():
        assert table.times_as_fast[name] >= bar
    assert table.core_share["core-without-the-network"] < benchmarks.CORE_SHARE
