"""The bundled models' tokenizers: what the stock pipelines expect, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CAPTIONS, build_qwen_image

from experiments.zoo.tokenizers import (
    QWEN_PREFIX,
    QWEN_PREFIX_TOKENS,
    QWEN_SUFFIX,
    build_clip_tokenizer,
    build_qwen_tokenizer,
    build_t5_tokenizer,
)
from repro.models import load


def test_tokenizers_are_what_the_pipelines_expect(tmp_path: Path) -> None:
    pipeline = load(build_qwen_image(tmp_path / "qwen-image")).pipeline
    assert pipeline.prompt_template_encode == QWEN_PREFIX + "{}" + QWEN_SUFFIX
    assert pipeline.prompt_template_encode_start_idx == QWEN_PREFIX_TOKENS
    qwen = build_qwen_tokenizer(CAPTIONS, vocab_size=600)
    for prompt in ("", " ", "red apple", "\nNever seen: Żółć 42", "<|im_end|>"):
        whole = qwen(QWEN_PREFIX + prompt + QWEN_SUFFIX).input_ids
        assert whole[:QWEN_PREFIX_TOKENS] == qwen(QWEN_PREFIX).input_ids
        assert whole[QWEN_PREFIX_TOKENS:] == qwen(prompt + QWEN_SUFFIX).input_ids
        assert qwen.decode(whole) == QWEN_PREFIX + prompt + QWEN_SUFFIX

    clip, t5 = build_clip_tokenizer(CAPTIONS, vocab_size=600), build_t5_tokenizer(CAPTIONS, vocab_size=300)
    assert clip.eos_token_id == len(clip) - 1 and clip.bos_token_id == len(clip) - 2
    ids = clip("red apple", padding="max_length", max_length=8).input_ids
    assert ids[0] == clip.bos_token_id and ids[-1] == clip.pad_token_id == clip.eos_token_id
    ids = t5("red apple", padding="max_length", max_length=8).input_ids
    assert ids[2:] == [1, 0, 0, 0, 0, 0], "two words, </s>, padding"


def test_tokenizers_are_the_same_every_time() -> None:
    for build in (build_clip_tokenizer, build_t5_tokenizer, build_qwen_tokenizer):
        first, second = (build(CAPTIONS, vocab_size=700).backend_tokenizer.to_str() for _ in range(2))
        assert first == second
        with pytest.raises(ValueError, match="vocab_size is 100"):
            build(CAPTIONS, vocab_size=100)
