"""Scorers against the published code they stand for, and their plumbing."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from conftest import CAPTIONS, build_clip, build_hpsv2, bundled
from PIL import Image

from repro.rewards import load

KINDS = ("hpsv2", "pickscore", "clipscore")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("scorers")
    clip = build_clip(root / "clip")
    return {"hpsv2": build_hpsv2(root / "hpsv2"), "pickscore": clip, "clipscore": clip}


@pytest.fixture(params=[*KINDS, *bundled("tiny-hpsv2", "tiny-pickscore", "tiny-clipscore")])
def scorer(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    name = request.param
    source = folders[name] if name in folders else name
    return load(f"{name.removeprefix('tiny-')}:{source}")


def _pictures(n: int, height: int = 64, width: int = 64) -> tuple[torch.Tensor, list[Image.Image]]:
    """n smooth random pictures, as tensors in [0, 1] and as the same bytes in PIL images."""
    noise = torch.randn(n, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(noise, (height, width), mode="bicubic").sigmoid()
    pixels = (smooth * 255).round().to(torch.uint8)
    return pixels.float() / 255, [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in pixels]


@pytest.fixture(scope="session")
def hpsv2_package() -> types.ModuleType:
    """hpsv2's own copy of open_clip, as installed.

    Its wheel lacks the vocabulary that it opens at import; open_clip ships the very same file, so that one is
    opened instead, and nothing is written into site-packages. It also imports a name from `turtle` that it
    never uses, which fails on a Python without Tk.
    """
    vocabulary = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    original = gzip.open

    def open_theirs(file: Any, *args: Any, **kwargs: Any) -> Any:
        return original(vocabulary if Path(file).name == vocabulary.name else file, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(gzip, "open", open_theirs)
        turtle = types.ModuleType("turtle")
        turtle.__dict__["forward"] = None
        patch.setitem(sys.modules, "turtle", turtle)
        warnings.simplefilter("ignore")  # timm's old layout
        return importlib.import_module("hpsv2.src.open_clip")


@pytest.mark.parametrize("size", [(64, 64), (96, 80), (40, 100)])
def test_hpsv2_is_the_published_code(
    hpsv2_package: types.ModuleType, folders: dict[str, Path], size: tuple[int, int]
) -> None:
    folder, scorer = folders["hpsv2"], load(f"hpsv2:{folders['hpsv2']}")
    config = json.loads((folder / "open_clip_config.json").read_text())
    theirs = hpsv2_package.CLIP(**config["model_cfg"], output_dict=True)
    theirs.load_state_dict(torch.load(folder / "hpsv2.pt", weights_only=True)["state_dict"])
    theirs.eval()
    # what hpsv2's create_model_and_transforms makes for `score`, for this architecture
    preprocess = hpsv2_package.transform.image_transform(
        64, is_train=False, resize_longest_max=True, **config["preprocess_cfg"]
    )
    images, pictures = _pictures(len(CAPTIONS), *size)
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(list(CAPTIONS))
    with torch.no_grad():
        outputs = theirs(torch.stack([preprocess(picture) for picture in pictures]), tokens)
    expected = (outputs["image_features"] @ outputs["text_features"].T).diagonal()
    torch.testing.assert_close(scorer(images, CAPTIONS), expected, atol=1e-5, rtol=0)
    assert expected.std() > 1e-3, "a constant would prove nothing"


def test_hpsv2_bare_checkpoints_are_vit_h_14(
    hpsv2_package: types.ModuleType, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The architecture and the tokenizer of a bare .pt, without a gigabyte of weights."""
    ours, theirs = (package.get_model_config("ViT-H-14") for package in (open_clip, hpsv2_package))
    assert ours == theirs
    small = json.loads((folders["hpsv2"] / "open_clip_config.json").read_text())["model_cfg"]
    small["text_cfg"] = {
        **small["text_cfg"],
        "vocab_size": 49408,
        "context_length": 77,
        "hf_tokenizer_name": "",
    }
    torch.manual_seed(0)
    model = open_clip.CLIP(**small)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "HPS_v2.1_compressed.pt")
    asked = []
    monkeypatch.setattr(open_clip, "get_model_config", lambda name: asked.append(name) or small)
    scorer = load(f"hpsv2:{tmp_path / 'HPS_v2.1_compressed.pt'}")
    assert asked == ["ViT-H-14"]
    tokens = hpsv2_package.get_tokenizer("ViT-H-14")(["A Dog's face, 2x", ""])
    assert torch.equal(scorer.tokenizer(["A Dog's face, 2x", ""]), tokens)
    assert scorer(_pictures(2)[0], ["a dog", "a cat"]).shape == (2,)


@pytest.mark.parametrize("kind", ["pickscore", "clipscore"])
def test_pickscore_and_clipscore_are_the_published_usage(folders: dict[str, Path], kind: str) -> None:
    from transformers import CLIPModel, CLIPProcessor

    folder = folders[kind]
    model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
    model.eval()
    for height, width, tolerance in ((64, 64, 1e-5), (100, 80, 5e-3)):  # resizing bytes rounds, floats do not
        images, pictures = _pictures(len(CAPTIONS), height, width)
        inputs = processor(
            text=list(CAPTIONS),
            images=pictures,
            padding=True,
            truncation=True,
            max_length=16,
            return_tensors="pt",
        )
        with torch.no_grad():
            outputs = model(**inputs)
        cosine = (outputs.image_embeds * outputs.text_embeds).sum(-1)
        scale = model.logit_scale.exp().item() if kind == "pickscore" else 100.0
        scores = load(f"{kind}:{folder}")(images, CAPTIONS)
        torch.testing.assert_close(scores / scale, cosine, atol=tolerance, rtol=0)
        torch.testing.assert_close(scores.std() / scale, cosine.std(), atol=tolerance, rtol=0.1)


def test_scores_are_batched_repeatable_and_write_nothing(
    scorer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images, _ = _pictures(7)
    prompts = ["red apple", "dog face", "red apple", "rocket", "dog face", "red apple", "a very long " * 30]
    scores = scorer(images, prompts)
    assert scores.shape == (7,) and scores.dtype == torch.float32 and not scores.requires_grad
    assert torch.equal(scores, scorer(images, prompts))
    scorer.batch_size = 2
    torch.testing.assert_close(scorer(images, prompts), scores, atol=1e-4, rtol=1e-5)
    one = torch.cat([scorer(images[i : i + 1], [prompts[i]]) for i in range(7)])
    torch.testing.assert_close(one, scores, atol=1e-4, rtol=1e-5)
    features = scorer.image_features(images)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(7))
    cosine = (features * scorer.text_features(prompts)).sum(-1)
    torch.testing.assert_close(cosine * scorer.scale, scores, atol=1e-4, rtol=1e-5)
    assert not list(tmp_path.iterdir())
    assert scorer.name.split(":")[0] in KINDS


def test_scorers_are_frozen_and_leave_no_graph(scorer: Any) -> None:
    images = _pictures(2)[0].requires_grad_()
    assert not scorer(images, ["rocket", "rocket"]).requires_grad
    assert not any(parameter.requires_grad for parameter in scorer.model.parameters())
    assert not scorer.model.training


def test_wrong_input_is_refused_in_one_line(scorer: Any) -> None:
    images, _ = _pictures(2)
    for wrong, prompts, message in (
        (images[0], ["a", "b"], "expected .B, 3, H, W."),
        (images.permute(0, 2, 3, 1), ["a", "b"], "expected .B, 3, H, W."),
        ((images * 255).to(torch.uint8), ["a", "b"], "floats in"),
        (images * 2 - 1, ["a", "b"], "range over"),
        (images * 255, ["a", "b"], "range over"),
        (images * np.nan, ["a", "b"], "range over"),
        (images, ["a"], "2 images but 1 prompts"),
        (images, "ab", "one string"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            scorer(wrong, prompts)
        assert "\n" not in str(caught.value)


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scorers.py").write_text(
        "import numpy\n"
        "def redness(images, prompts):\n    return images[:, 0].mean((1, 2))\n"
        "def length(images, prompts):\n    return [len(prompt) for prompt in prompts]\n"
        "def array(images, prompts):\n    return numpy.arange(len(prompts))\n"
        "def words(images, prompts):\n    return prompts\n"
        "def short(images, prompts):\n    return images[:1, 0, 0, 0]\n"
        "def nan(images, prompts):\n    return images[:, 0, 0, 0] * float('nan')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    images, _ = _pictures(2)
    scorer = load("my_scorers:redness")
    assert scorer.name == "my_scorers:redness"
    torch.testing.assert_close(scorer(images, ["a", "bb"]), images[:, 0].mean((1, 2)))
    assert load("my_scorers:length")(images, ["a", "bb"]).tolist() == [1.0, 2.0]
    assert load("my_scorers:array")(images, ["a", "bb"]).dtype == torch.float32
    for name, message in {
        "words": "returned no numbers",
        "short": r"returned \(1,\) for 2 images",
        "nan": "finite",
    }.items():
        with pytest.raises(ValueError, match=message):
            load(f"my_scorers:{name}")(images, ["a", "bb"])
    for spec, message in {
        "my_scorers:number": "no function number",
        "my_scorers:absent": "no function absent",
        "no_such_module:f": "importing no_such_module failed",
        "aesthetic": "pass hpsv2, pickscore, clipscore",
        "": "pass hpsv2",
    }.items():
        with pytest.raises(ValueError, match=message):
            load(spec)


def test_load_says_in_one_line_what_is_wrong(folders: dict[str, Path], tmp_path: Path) -> None:
    hps, clip = folders["hpsv2"], folders["clipscore"]

    def copy(source: Path, name: str, leave_out: str = "nothing") -> Path:
        return Path(shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns(leave_out)))

    state = torch.load(hps / "hpsv2.pt", weights_only=True)["state_dict"]
    del state["ln_final.weight"]
    torch.save({"state_dict": state}, copy(hps, "fewer") / "hpsv2.pt")
    torch.save(state, copy(hps, "naked") / "hpsv2.pt")
    torch.save({"state_dict": Path("code")}, copy(hps, "pickle") / "hpsv2.pt")
    (copy(hps, "text") / "hpsv2.pt").write_text("no checkpoint")
    (copy(hps, "two") / "more.pt").write_text("")
    (copy(hps, "badjson") / "open_clip_config.json").write_text("{")
    (copy(hps, "nocfg") / "open_clip_config.json").write_text("{}")
    (copy(hps, "odd") / "open_clip_config.json").write_text('{"model_cfg": {"depth": 3}}')
    copy(hps, "none", "*.pt")
    copy(hps, "notokenizer", "tokenizer*")
    from safetensors.torch import load_file, save_file

    weights = load_file(clip / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, copy(clip, "clipless") / "model.safetensors", metadata={"format": "pt"})
    copy(clip, "noweights", "*.safetensors")
    copy(clip, "noprocessor", "*process*")

    for spec, message in {
        "hpsv2:fewer": "1 of .* tensors differ, the first is ln_final.weight",
        "hpsv2:naked": "has no 'state_dict'",
        "hpsv2:pickle": "no checkpoint of plain tensors",
        "hpsv2:text": "no checkpoint of plain tensors",
        "hpsv2:two": "exactly one .pt checkpoint, it has 2",
        "hpsv2:none": "exactly one .pt checkpoint, it has 0",
        "hpsv2:badjson": "not valid JSON",
        "hpsv2:nocfg": "has no model_cfg",
        "hpsv2:odd": "not one of open_clip's CLIP",
        "hpsv2:notokenizer": "no tokenizer that loads",
        "hpsv2:fewer/hpsv2.pt": "does not fit the architecture",
        "pickscore:clipless": "1 tensors are missing, text_projection.weight first",
        "pickscore:noweights": "cannot load a CLIP model",
        "clipscore:noprocessor": "cannot load a CLIP model and processor",
        "clipscore:two": "has no config.json",
    }.items():
        kind, _, name = spec.partition(":")
        with pytest.raises(ValueError, match=message) as caught:
            load(f"{kind}:{tmp_path / name}")
        assert "\n" not in str(caught.value)
    for kind in KINDS:
        with pytest.raises(ValueError, match="bundled name, an existing path or a hub id"):
            load(f"{kind}:nowhere.pt")
        with pytest.raises(ValueError, match=r"nobody/nothing") as caught:
            load(f"{kind}:nobody/nothing")
        assert "\n" not in str(caught.value)
