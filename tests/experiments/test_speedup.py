"""The wall-clock table: what is timed, in what order, what is predicted beside it, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CAPTIONS, build_flux
from torch import Tensor

from experiments.cli import main
from experiments.speedup import measure as speedup
from experiments.speedup import step
from experiments.speedup.config import AGAIN, EXACT, Arm, Config, Setting, settings
from experiments.speedup.step import Step
from repro.results import read
from repro.training.recipe import Recipe

SMALL = Config(
    model="flux-dev",
    synthetic_weights=True,
    reduced=True,
    algorithms=("flow_grpo_fast",),
    variations=("base",),
    schemes=("jagg",),
    rounds=1,
    prompts=1,
    images=2,
)


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """Short updates are not repeated: what is tested is no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "ENOUGH", 0.0)
        yield


def brightness(images: Tensor, prompts: list[str]) -> Tensor:
    return images.mean(dim=(1, 2, 3))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speedup.run(replace(SMALL, out=tmp_path_factory.mktemp("small")))


def test_a_row_is_a_step_of_a_scheme(small: Path) -> None:
    table = read(small)
    assert list(table.scheme) == ["exact", "exact-again", "jagg-time"]
    assert (table.trained_steps == 4).all() and (table.sampling_steps == 21).all()
    assert (table[["rollout_s", "decode_s", "update_s", "optimizer_s", "overhead_s"]] > 0).all().all()
    assert list(table.forwards) == [4, 4, 4]
    assert list(table.backwards) == list(table.recomputes) == [4, 4, 2]


def test_the_prediction_is_the_cost_models(small: Path) -> None:
    for row in read(small).itertuples():
        forwards = 4 + row.backwards * (1 + row.backward_factor)
        assert row.predicted_update_s == pytest.approx(row.forward_s * forwards, rel=1e-6)


def test_a_finished_table_is_not_measured_again(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(speedup, "_round", refuse)
    before = small.read_bytes()
    speedup.run(replace(SMALL, out=small.parents[1]))
    assert small.read_bytes() == before


def test_schemes_take_turns_and_the_first_round_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, time = [], Step.time

    def watched(self: Step, recipe: Recipe, repeat: bool = True) -> Any:
        timed.append((recipe.scheme, repeat))
        return time(self, recipe, repeat)

    monkeypatch.setattr(Step, "time", watched)
    table = read(speedup.run(replace(SMALL, rounds=2, out=tmp_path)))
    for start, repeat in ((0, False), (3, True), (6, True)):
        turn = sorted(timed[start : start + 3])
        assert turn == [("exact", repeat), ("exact", repeat), ("jagg", repeat)]
    assert len(timed) == 9 and list(table["round"]) == 3 * [0, 1]


def test_every_round_has_an_order_of_its_own() -> None:
    arms = [EXACT, AGAIN, Arm("jagg"), Arm("routed", 0.6)]
    orders = [tuple(speedup.turns(arms, 0, Setting(), round_)) for round_ in range(10)]
    assert all(set(order) == set(arms) for order in orders)
    assert len(set(orders)) > 5 and len({order[0] for order in orders}) > 2
    assert orders == [tuple(speedup.turns(arms, 0, Setting(), round_)) for round_ in range(10)]


def test_an_interrupted_setting_goes_on_with_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, calls = Step.unit, []

    def interrupt(self: Step) -> Any:
        calls.append(1)
        if len(calls) == 3:  # after the warm-up and a round, whose rows are on disk
            raise KeyboardInterrupt
        return unit(self)

    config = replace(SMALL, rounds=2, out=tmp_path)
    monkeypatch.setattr(Step, "unit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        speedup.run(config)
    (csv,) = tmp_path.glob("*/speedup.csv")
    first = read(csv)
    assert list(first["round"]) == [0, 0, 0]
    table = read(speedup.run(config))
    assert list(table["round"]) == 3 * [0, 1]
    assert list(table[table["round"] == 0].update_s) == list(first.update_s)


def test_what_does_not_fit_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    time = Step.time

    def scarce(self: Step, recipe: Recipe, repeat: bool = True) -> Any:
        if not recipe.checkpointing:
            raise torch.OutOfMemoryError
        return time(self, recipe, repeat)

    monkeypatch.setattr(Step, "time", scarce)
    table = read(speedup.run(replace(SMALL, variations=("base", "checkpointing"), out=tmp_path)))
    assert table.checkpointing.all()
    assert "left out, as flux-dev-synthetic-reduced does not fit" in capsys.readouterr().err


def test_a_model_with_a_scorer_of_ones_own(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(CAPTIONS))
    config = replace(
        SMALL,
        model=str(build_flux(tmp_path / "model")),
        synthetic_weights=False,
        reduced=False,
        reward="test_speedup:brightness",
        prompts_file=prompts,
        out=tmp_path / "results",
    )
    table = read(speedup.run(config))
    assert (table.reward_s > 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpus_steps_are_timed(tmp_path: Path, compiled: bool) -> None:
    table = read(speedup.run(replace(SMALL, device="cuda", dtype="bfloat16", compile=compiled, out=tmp_path)))
    assert (table.device == torch.cuda.get_device_name()).all()
    assert (table.peak_memory > 0).all() and (table.update_s > 0).all()


# Settings


def test_every_row_of_the_full_table_has_a_key_of_its_own() -> None:
    wanted = settings(Config())
    for setting, chosen in wanted.items():
        names = [speedup.scheme_name(speedup.recipe_of(Config(), setting), arm) for arm in chosen]
        assert names[0] == "exact" and len(set(names)) == len(names)
        if setting.algorithm == "flow_grpo_fast":
            assert not any(name.startswith(("routed", "subset")) for name in names)
    assert {s.group_size for s in wanted} == {2, 4, 5, 10}
    assert {s.anchor_chunk for s in wanted} == {1, 2, 4}
    assert {s.weights for s in wanted} == {"full", "lora"}
    assert {s.batch for s in wanted} == {3, 6, 12}
    modes = [(s.weights, s.checkpointing) for s in wanted]
    runs = [mode for mode, before in zip(modes, [None, *modes], strict=False) if mode != before]
    assert len(runs) == len(set(modes)), "one policy after the other"
    assert runs[0] == ("full", True), "the paper's mode first"


# Bad input


def test_full_size_on_a_cpu_is_refused_with_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "speedup", "--model", "flux-dev", "--synthetic-weights"]) == 2
    line = capsys.readouterr().err
    assert "flux-dev at full size needs 45 GiB" in line and line.count("\n") == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": "sd3"}, "no synthetic weights for sd3"),
        ({"rounds": 0}, "rounds is 0"),
        ({"synthetic_weights": False}, "--reduced is for --synthetic-weights"),
        ({"batch": 3}, "2 images of a prompt do not divide"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        speedup.run(replace(SMALL, out=tmp_path, **change))


def test_out_of_memory_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(Step, "time", fail)
    with pytest.raises(ValueError, match="nothing was timed: .* does not fit on cpu .*: lower --prompts"):
        speedup.run(replace(SMALL, out=tmp_path))
