"""What README says of the tables: right numbers, and sentences that fall whichever way the numbers do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from test_speedup import made_up
from training_tables import fake, write_tables

from experiments import (
    ablation,
    ablation_markdown,
    allgather,
    convergence,
    convergence_data,
    convergence_markdown,
    convergence_rates,
    readme,
    speedup_report,
    sweep_markdown,
)
from experiments.convergence_data import at_main_rate, main_rate
from experiments.convergence_report import hacking_sentence, short
from experiments.markdown import listed, signed, table
from repro.results import Table

SPREAD = (-0.003, -0.001, 0.0, 0.001, 0.002, 0.003)


def rises(center: float, reverse: bool = False) -> list[float]:
    return [center + s for s in (reversed(SPREAD) if reverse else SPREAD)]


def row(text: str, label: str) -> list[str]:
    """The cells of the first table row that begins with a label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_building_blocks():
    assert table(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |"
    assert [signed(0.5, 0.25, 2), signed(-1.0), signed(float("nan"))] == ["+0.50±0.25", "-1.0000", "-"]
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [short("pickscore:tiny"), short("module:function")] == ["pickscore", "module:function"]


# The rate at which arms are compared


def test_arms_are_compared_where_most_of_them_are():
    many = fake({("exact", 1.0): [0.1], ("exact", 3.0): [0.1], ("jagg", 3.0): [0.1]})
    assert main_rate(many) == 3
    assert main_rate(fake({("exact", 9.0): [0.1] * 3, ("exact", 1.0): [0.1]})) == 1
    assert main_rate(fake({("exact", 9.0): [0.1], ("exact", 3.0): [0.1] * 2})) == 3
    both = pd.concat([many, fake({("exact", 1.0): [0.1]}, "paper-eta")])
    assert at_main_rate(both).groupby("setting").lr_factor.unique().to_dict() == {
        "comfortable": [3],
        "paper-eta": [1],
    }


# Convergence


def trained(folder: Path, jagg: list[float], exact: list[float] | None = None, factor: float = 1.0) -> str:
    cells = {("exact", factor): exact or rises(0.4), ("jagg", factor): jagg}
    other = fake({key: [0.5 * rise for rise in values] for key, values in cells.items()}, metric="similarity")
    return convergence_markdown.markdown(write_tables(pd.concat([fake(cells), other]), folder))


def test_convergence_has_a_row_an_arm(tmp_path):
    text = trained(tmp_path, rises(0.2))
    assert text.startswith(
        "**m, DanceGRPO, comfortable** (many images per update), from noise 0.6 on the weights: rise"
    )
    # The last quarter of the evaluations is the mean of 7/8 and 8/8 of the rise.
    cells = row(text, "JAGG, all groups")
    assert cells[0] == "6" and cells[-2:] == ["8", f"{8 * (80 + 50 + 2 * 50):,}"]
    mean = 15 / 16 * sum(rises(0.2)) / 6
    assert cells[1].startswith(f"{mean:+.4f}±") and cells[3].startswith(f"{mean / 2:+.4f}±")
    assert cells[2] == "-0.1875±0.0000"  # paired: the seeds' own effect is gone
    assert row(text, "exact")[2] == "-"


def test_runs_that_are_not_complete_cost_nothing(tmp_path):
    cells = fake({("exact", 1.0): rises(0.4)})
    text = convergence_markdown.markdown(write_tables(cells[(cells.seed < 4) | (cells.step < 5)], tmp_path))
    assert row(text, "exact")[0] == "4" and row(text, "exact")[-2] == "8"


@pytest.mark.parametrize(
    ("jagg", "exact", "said"),
    [
        (rises(0.4, reverse=True), None, "This agrees with what is reported."),
        (rises(0.5), None, "at the end (higher)"),
        (rises(0.2), None, "This does not agree with what is reported."),
        ([0.1, 0.7, 0.3, 0.5, 0.2, 0.6], None, "This neither shows nor refutes what is reported."),
        (rises(0.4), [0.1, 0.9, -0.2, 0.3, 0.2, 0.1], "This says little, as the baseline hardly learned."),
        (rises(0.4)[:1], None, "not to be judged without two seeds"),
        (rises(0.4), rises(-0.4), "not to be judged without two seeds and a baseline that rose"),
    ],
)
def test_what_is_reported_of_quality_is_judged(tmp_path, jagg, exact, said):
    text = trained(tmp_path, jagg, exact)
    assert "Reported of JAGG: \"follows the baseline's curve; equal or slightly above" in text
    assert said in text


def test_stability_is_the_seeds_spread(tmp_path):
    wide = [0.4 + 20 * s for s in SPREAD]
    assert "Its seeds spread 20.00 times as far as exact's (p 0.00: less stable)." in trained(tmp_path, wide)
    text = trained(tmp_path, rises(0.4, reverse=True))
    assert "no difference shown" in text and "differs from exact in nothing beyond its interval" in text


def test_another_rate_is_named(tmp_path):
    assert "(many images per update; learning rate ×3)" in trained(tmp_path, rises(0.4), factor=3.0)


def test_without_jagg_nothing_is_said_of_it(tmp_path):
    text = convergence_markdown.markdown(write_tables(fake({("exact", 1.0): [0.4]}), tmp_path))
    assert "Reported" not in text and "needs two seeds or more" in text


def test_reward_hacking_is_named():
    def of(**others: float) -> str:
        tables = [
            fake({("exact", 1.0): rises(rise)}, metric=m) for m, rise in {"reward": 0.4, **others}.items()
        ]
        return hacking_sentence(convergence_markdown.runs(pd.concat(tables)))

    assert "rises while similarity falls is being hacked" in of(similarity=-0.1, clipscore=0.1)
    assert "no sign of reward hacking" in of(similarity=0.1, diversity=-0.1)
    assert "hack" not in of(diversity=-0.1) and "diversity fell" in of(diversity=-0.1)
    assert of(similarity=0.0) == "Nothing it was not trained on changed beyond its interval."


# The sweep


def swept(folder: Path, early: dict[float, list[float]], **settings) -> Path:
    comfortable = fake({("exact", 1.0): [0.4, 0.42], ("exact", 3.0): [0.8, 0.82], ("jagg", 1.0): [9.0]})
    early_code = fake({("exact", factor): values for factor, values in early.items()}, "paper-eta")
    return write_tables(pd.concat([comfortable, early_code]), folder, **settings)


@pytest.mark.parametrize(
    ("early", "said"),
    [
        (
            {1.0: [0.2, 0.22], 3.0: [0.1, 0.1]},
            "learns at this size: at its best of 2 learning rates (×1, the small",
        ),
        (
            {1.0: [0.0, 0.01], 3.0: [0.0, 0.1]},
            "does not visibly learn at this size: at its best of 2 learning",
        ),
        ({1.0: [-0.2, -0.21]}, "does not visibly learn at this size: at rate ×1 the reward fell by 0.19"),
        (
            {3.0: [0.1]},
            ": at rate ×3 the reward rose by 0.0938; one seed cannot tell whether that is learning.",
        ),
    ],
)
def test_the_sweep_says_whether_the_early_codes_eta_learns(tmp_path, early, said):
    text = sweep_markdown.markdown(swept(tmp_path, early))
    assert "exact gradients, from noise 0.6 on the weights: rise in reward" in text
    assert "in 8 training steps" in text
    assert "| setting | eta | rate ×1 | seeds | ×1 | ×3 |" in text
    ours = row(text, "many images per update")
    assert ours[:3] == ["0.7", "3e-05", "2"] and ours[4].startswith(f"{0.81 * 15 / 16:+.4f}±")
    first = row(text, "eta 0.3 (early code), else as comfortable")
    assert first[0] == "0.3"
    mean = f"{sum(early[1.0]) / 2 * 15 / 16:+.4f}±" if 1.0 in early else "-"
    assert first[3].startswith(mean)
    assert f"The early code's eta 0.3{' ' * (said[0] != ':')}{said}" in text
    assert "Our eta 0.7 learns at this size: at its best of 2 learning rates (×3, the largest tried)" in text
    assert "+8.4" not in text  # the other arms are no part of it


def test_the_sweep_has_other_regimes_and_starts(tmp_path):
    sparse = fake({("exact", 1.0): [0.4]}, "sparse")
    later = sparse[sparse.step > 0].assign(step=lambda rows: rows.step + 8)
    csv = write_tables(pd.concat([sparse, later]), tmp_path, start_noise=0.0)
    text = sweep_markdown.markdown(csv)
    # Its learning rate is twice the recipe's, and it trains twice as long.
    assert row(text, "few images per update, large steps, twice as long")[:3] == ["0.7", "6e-05", "1"]
    assert "from the model's own weights: rise in reward on evaluation prompts in 8 training steps" in text


def test_only_several_rates_have_a_figure_of_theirs(tmp_path):
    csv = swept(tmp_path, {1.0: [0.1], 3.0: [0.1]})
    cells = convergence_data.complete(csv)
    convergence_rates.plot(csv, cells[cells.lr_factor == 1])
    assert not csv.with_name("convergence-rates.png").exists()
    convergence_rates.plot(csv, cells)
    assert csv.with_name("convergence-rates.png").stat().st_size > 10_000


def test_a_table_of_one_arm_and_several_rates_is_drawn(tmp_path):
    one = write_tables(fake({("exact", 3.0): [0.4], ("exact", 9.0): [0.5]}, "paper-eta"), tmp_path / "one")
    assert convergence.plot(one).stat().st_size > 10_000
    assert one.with_name("convergence-rates.png").stat().st_size > 10_000


# Ablation


def ablated(folder: Path, readings: dict[str, list[float]], exact: list[float] | None = None) -> str:
    values = {"exact": exact or rises(0.4), "jagg": rises(0.4, reverse=True), **readings}
    cells = write_tables(fake({(arm, 1.0): of_arm for arm, of_arm in values.items()}), folder)
    ablation.write(cells, ablation.Config())
    return ablation_markdown.markdown(cells.with_name("ablation.csv"))


NOISE = [0.1, 0.7, 0.3, 0.5, 0.2, 0.6]


@pytest.mark.parametrize(
    ("own", "half", "said"),
    [
        (rises(0.2), rises(0.3), "2 lower, of 2 in all; this agrees."),
        (rises(0.2), NOISE, "1 lower and 1 undecided, of 2 in all; shown for some, refuted for none."),
        (
            rises(0.2),
            rises(0.4),
            "1 lower and 1 equal within the margin, of 2 in all; not consistently worse",
        ),
        (rises(0.6), NOISE, "1 higher and 1 undecided, of 2 in all; not consistently worse"),
        (NOISE, NOISE, "2 undecided, of 2 in all; neither shown nor refuted here."),
    ],
)
def test_what_is_reported_of_endpoints_is_judged(tmp_path, own, half, said):
    text = ablated(tmp_path, {"endpoints-own": own, "endpoints-half": half})
    assert "Reported of endpoints without interpolation: consistently worse than JAGG." in text
    assert said in text


def test_contrasts_have_reported_beside_measured(tmp_path):
    text = ablated(tmp_path, {"endpoints-own": rises(0.2), "subset": rises(0.5)})
    equal = row(text, "JAGG, all groups − exact")
    assert equal[:2] == ["6", "equal or slightly above"] and equal[4] == "equal within the margin"
    own = row(text, "endpoints: own s − JAGG, all groups")
    # The mean of eighths of a rise is 9/16 of it; the reversed spread has the same mean.
    assert own[1] == "lower" and own[2].startswith(f"{-0.2 * 9 / 16:+.4f}±") and own[4] == own[6] == "lower"
    assert row(text, "exact on fewer steps, JAGG's cost − JAGG, all groups")[1] == "-"
    assert "not among what is reported, minus JAGG: higher (comfortable, 6 seeds)." in text


def test_a_rise_is_divided_by_what_it_cost(tmp_path):
    text = ablated(tmp_path, {})
    rise = 15 / 16 * sum(rises(0.4)) / 6
    exact, jagg = row(text, "exact"), row(text, "JAGG, all groups")
    assert exact[2].startswith(f"{rise / 800 * 1e6:+.3g}±") and jagg[2].startswith(
        f"{rise / 400 * 1e6:+.3g}±"
    )
    assert exact[4].startswith(f"{rise / 8 * 1e3:+.3g}±")
    assert "JAGG's rise is 2.00±" in text and "1.00±0.01 per second times exact's (comfortable)." in text


def test_a_baseline_that_did_not_learn_judges_nothing(tmp_path):
    text = ablated(tmp_path, {"endpoints-own": rises(0.2)}, exact=[0.1, 0.9, -0.2, 0.3, 0.2, 0.1])
    assert "under 3 times its seeds' spread, too little to tell arms apart" in text
    assert "no setting yet in which the baseline learned" in text and "times exact's" not in text


# Speedup


def test_the_speedup_stands_beside_reported_and_predicted(tmp_path):
    text = speedup_report.markdown(made_up(tmp_path))
    routed = row(text, "routed-0.6")
    assert routed == ["22.5 ± 0.0", "22.5", "17.8 ± 0.0", "17.8", "step: 17.3 … 18.2"]
    assert row(text, "jagg-time")[-1] == "-"
    assert "consistent with the 17.3 … 18.2 % reported." in text
    assert "within 5 % in 2 of 2 cells" in text and "b, measured: 2.00 … 2.00" in text


def test_a_smaller_saving_is_told_and_overhead_marked(tmp_path):
    text = speedup_report.markdown(made_up(tmp_path, slower=1.08, overhead=10.0))
    assert "below the 17.3 … 18.2 % reported." in text
    assert r"jagg-time\*" in text and r"marked \*, are dominated by overhead" in text
    faster = speedup_report.markdown(made_up(tmp_path, slower=0.9))
    assert "above the 17.3 … 18.2 % reported." in faster


# All-gathers


def counted(folder: Path, joint: float, with_checkpointing: float) -> str:
    csv = folder / "allgather.csv"
    rows = [
        {
            **dict.fromkeys(allgather.COLUMNS, 0),
            "layout": layout,
            "checkpointing": checkpointing,
            "sync_held_back": held,
            "ranks": 2,
            "blocks": 4,
            "groups": 2,
            "group_size": 4,
            "all_gathers_forward": 2.0 * forward,
            "all_gathers_backward": 2.0 * (with_checkpointing if checkpointing else backward),
            "reduce_scatters_backward": 1.0 if held else 2.0 * backward,
            "gradient_error": 1e-7,
        }
        for layout, forward, backward in (("jagg-joint", 4, joint), ("jagg-stacked", 2, 1.0))
        for checkpointing in (False, True)
        for held in (False, True)
    ]
    with Table(csv, allgather.COLUMNS, allgather.KEY, provenance={}, fresh=True) as written:
        written.append(*rows)
    return allgather.markdown(csv)


def test_the_claim_of_one_all_gather_is_judged(tmp_path):
    text = counted(tmp_path, joint=2.0, with_checkpointing=3.0)
    assert row(text, "JAGG, two graphs, joint backward") == ["4", "2", "1", "2", "0.5"]
    assert row(text, "JAGG, endpoints stacked") == ["2", "1", "-", "1", "0.5"]
    assert "made 2 here: this does not agree. One was made by: JAGG, endpoints stacked." in text
    assert "Checkpointing changes the counts of: JAGG, two graphs" in text
    text = counted(tmp_path, joint=1.0, with_checkpointing=1.0)
    assert "made 1 here: this agrees." in text and "changes none of the counts" in text


# README


def test_parts_without_tables_name_their_command(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    for name, part in readme.PARTS.items():
        assert part().startswith("No results yet: `.venv/bin/repro run "), name


def test_parts_show_what_tables_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    table_ = fake({("exact", 1.0): rises(0.4), ("jagg", 1.0): rises(0.4, reverse=True)})
    results = tmp_path / "results"
    first = write_tables(table_, results / "tiny-flux-dance_grpo")
    first.with_suffix(".png").touch()
    write_tables(table_, results / "tiny-flux-flow_grpo_fast", "flow_grpo_fast")
    swept(results / "sweep" / "tiny-flux-dance_grpo", {1.0: [0.1]})
    gpu = results / "gpu" / "flux-dev-lora" / "flux-dev"
    gpu.mkdir(parents=True)
    made_up(gpu)
    text = readme.filled("\n".join(f"<!-- measured: {name} -->\nold\n<!-- end -->" for name in readme.PARTS))
    assert text.index("**m, DanceGRPO, comfortable**") < text.index("<details>")  # the first one is open
    assert "<details><summary>tiny-flux-flow_grpo_fast</summary>\n\n**m, Flow-GRPO-Fast, comf" in text
    assert "[Figure](results/tiny-flux-dance_grpo/convergence.png)." in text
    assert "flow_grpo_fast/convergence.png" not in text  # none was drawn
    assert "0.3 (early code)" in text and "routed-0.6 takes" in text
    assert text.count("No results yet") == 3  # cosine, ablation, allgather
