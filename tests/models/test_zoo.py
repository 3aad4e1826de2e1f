"""The bundled checkpoints: complete, small, loadable by stock classes, and good enough to mean something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.zoo.data import FONTS, side
from repro import rewards, zoo
from repro.provenance import checkpoint_sha256

MIB = 1 << 20
ACCURACY = 0.6  # over all pictures that a scorer never saw; chance is 0.01


def _card(name: str) -> dict:
    return json.loads((zoo.FOLDER / name / "repro_card.json").read_text())


def _sample(name: str, prompts: list[str], steps: int) -> torch.Tensor:
    """A stock call, nothing of ours."""
    from diffusers import FluxPipeline, QwenImagePipeline

    folder = zoo.FOLDER / name
    options = {"height": 64, "width": 64, "num_inference_steps": steps, "output_type": "pt"}
    if name == "tiny-flux":
        pipe = FluxPipeline.from_pretrained(folder)
        options["max_sequence_length"] = _card(name)["max_sequence_length"]
    else:
        pipe = QwenImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe(prompts, generator=torch.Generator().manual_seed(0), **options).images.float()


def test_all_of_it_travels_light() -> None:
    files = [f for f in zoo.FOLDER.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert sum(f.stat().st_size for f in files) < 36 * MIB


@pytest.mark.parametrize("name", zoo.MODELS + zoo.SCORERS)
def test_card_is_of_these_files(name: str) -> None:
    card = _card(name)
    assert card["sha256"] == checkpoint_sha256(zoo.FOLDER / name)
    assert {"data", "command", "seed", "final"} <= set(card)
    assert card["command"] in (zoo.FOLDER / name / "README.md").read_text()


def test_splits_share_no_name() -> None:
    names = {split: {p.split(" ", 1)[1] for p in zoo.prompts(split)} for split in zoo.SPLITS}
    assert names["train"].isdisjoint(names["eval"] | names["unseen"])
    assert names["eval"].isdisjoint(names["unseen"])
    for split in ("eval", "unseen"):
        assert zoo.pictures(split).shape == (len(zoo.prompts(split)), 3, 64, 64)


def test_names_and_drawings_go_together() -> None:
    prompts, pictures = zoo.prompts("eval"), zoo.pictures("eval")
    names, drawings = zoo.names("eval"), zoo.drawings("eval")
    assert drawings.shape == (len(names), len(zoo.FONTS), 3, 64, 64)
    for i in (0, 7, len(names) - 1):
        for k, font in enumerate(zoo.FONTS):
            assert torch.equal(drawings[i, k], pictures[prompts.index(f"{font} {names[i]}")])


def test_a_true_picture_is_nearest_to_its_own_font() -> None:
    drawings = zoo.drawings("unseen")
    noise = 0.1 * torch.randn(drawings.shape, generator=torch.Generator().manual_seed(0))
    own = torch.arange(len(zoo.FONTS)).expand(len(drawings), -1)
    assert torch.equal(zoo.nearest_font(drawings + noise, drawings), own)


def test_unknown_split_and_unbundled_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of train, eval, unseen"):
        zoo.prompts("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bundled for eval and unseen"):
        zoo.pictures("train")  # type: ignore[arg-type]


def test_every_prompt_fits_the_trained_length() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(zoo.FOLDER / "tiny-flux" / "tokenizer_2")
    longest = max(len(tokenizer(p).input_ids) for split in zoo.SPLITS for p in zoo.prompts(split))
    assert longest <= _card("tiny-flux")["max_sequence_length"]


def test_qwen_template_prefix_is_the_34_tokens_that_the_pipeline_drops() -> None:
    from diffusers import QwenImagePipeline

    pipe = QwenImagePipeline.from_pretrained(zoo.FOLDER / "tiny-qwen-image", vae=None, transformer=None)
    prefix = pipe.prompt_template_encode.split("{}")[0]
    assert len(pipe.tokenizer(prefix).input_ids) == pipe.prompt_template_encode_start_idx == 34
    # the seam is a token boundary, so no prompt can merge with the prefix
    whole = pipe.tokenizer(pipe.prompt_template_encode.format("noto red apple")).input_ids
    assert pipe.tokenizer.decode(whole[34:]).startswith("noto red apple")


@pytest.mark.parametrize("spec", [zoo.TRAINING_SCORER, *zoo.EVALUATION_SCORERS])
def test_scorers_name_pictures_that_they_never_saw(spec: str) -> None:
    """Of each name, a scorer learned one of the generators' two fonts; these pictures are the other one's.

    The card has the share over all of them. What is bundled is a sample of a hundred, whose standard error
    is 0.05: two of these below.
    """
    card = _card(spec.split(":")[1])
    assert card["accuracy_among_100"]["pictures it never saw"] > ACCURACY
    prompts = zoo.prompts("eval") + zoo.prompts("unseen")
    pictures = torch.cat([zoo.pictures("eval"), zoo.pictures("unseen")])
    strange = [i for i, prompt in enumerate(prompts) if side(*prompt.split(" ", 1)) != card["side"]][:100]
    scorer = rewards.load(spec)
    images = scorer.image_features(pictures[strange])
    texts = scorer.text_features([prompts[i] for i in strange])
    right = (images @ texts.T).argmax(1) == torch.arange(100)
    assert right.float().mean() > ACCURACY - 2 * 0.05


def test_no_picture_is_shared_by_training_and_evaluation() -> None:
    sides = {name: _card(name)["side"] for name in zoo.SCORERS}
    assert sides["tiny-hpsv2"] not in {sides["tiny-pickscore"], sides["tiny-clipscore"]}
    assert {side(font, "red apple") for font in FONTS} == {0, 1}


@pytest.mark.parametrize("name", zoo.MODELS)
def test_card_tells_of_nine_tenths_of_the_way_by_todays_scorers(name: str) -> None:
    """Of seen names, from other prompts to the real pictures: 0.9 on average over the evaluation scorers."""
    card, shares = _card(name), []
    for spec in zoo.EVALUATION_SCORERS:
        scorer = spec.split(":")[1]
        assert card["judges_sha256"][spec] == checkpoint_sha256(zoo.FOLDER / scorer)
        shares.append(card["evaluation"][f"eval_{scorer}"]["share_samples"])
    assert sum(shares) / len(shares) >= 0.9


@pytest.mark.parametrize("name", zoo.MODELS)
def test_stock_pipeline_draws_what_the_prompt_says(name: str) -> None:
    """Samples score at least two thirds of the way from other prompts to the real pictures.

    In few steps and of few prompts; the cards have the share in full.
    """
    prompts = zoo.prompts("eval")[::8]
    images = _sample(name, prompts, steps=12)
    assert images.shape == (16, 3, 64, 64) and images.min() >= 0 and images.max() <= 1
    scorer = rewards.load(zoo.EVALUATION_SCORERS[0])
    real = zoo.pictures("eval")[::8]
    other = float(scorer(real, prompts[5:] + prompts[:5]).mean())
    best = float(scorer(real, prompts).mean())
    assert float(scorer(images, prompts).mean()) > other + 2 / 3 * (best - other)


def test_resolve_knows_its_own_names_only() -> None:
    assert zoo.resolve("tiny-flux") == Path(zoo.FOLDER / "tiny-flux")
    assert zoo.resolve("black-forest-labs/FLUX.1-dev") is None
