"""Small tokenizers, learned from captions, of the classes the stock pipelines and scorers expect.

* CLIP (`CLIPTokenizer`): byte-level BPE whose word ends carry ``</w>``; text is wrapped in
  ``<|startoftext|>`` and ``<|endoftext|>``, as in the original the two highest ids. So the end token sits at
  the arg-max of the ids, and the pooling rules of open_clip (arg-max) and transformers (eos) agree.
* T5 (`T5Tokenizer`): Unigram over words, ids 0, 1, 2 for pad, ``</s>``, unknown.
* Qwen (`Qwen2Tokenizer`): byte-level BPE. `QwenImagePipeline` wraps the prompt in a template and drops
  exactly the first 34 tokens. In Qwen's own vocabulary every word of that prefix is one token, and there are
  34 of them; here those words get merges by construction, before anything learned from captions.

The same captions give the same bytes, so a rebuilt zoo has the same ids.

Run the zoo as ``python -m experiments.zoo...``: with this folder itself on sys.path this file would hide the
package `tokenizers`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer, Qwen2Tokenizer, T5Tokenizer

from repro.errors import InputError

# diffusers' QwenImagePipeline: prompt_template_encode around the prompt, prompt_template_encode_start_idx.
QWEN_PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
QWEN_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
QWEN_PREFIX_TOKENS = 34
# Qwen2.5-VL's special tokens, in the order of their ids there.
QWEN_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
Merges = list[Any]  # of pairs of str; transformers annotates them as str


def build_clip_tokenizer(
    captions: Iterable[str], vocab_size: int = 2000, max_length: int = 16
) -> CLIPTokenizer:
    """CLIP's byte-level BPE, learned from `captions`.

    Args:
        captions: training text; any other text still tokenizes, byte by byte.
        vocab_size: upper bound on the number of ids, at least 514 (2 x 256 bytes and two special tokens).
        max_length: model_max_length, both special tokens included.

    Returns:
        A tokenizer whose `save_pretrained` writes what FluxPipeline, CLIPProcessor and open_clip read. A text
        encoder's config must name its ``bos_token_id``, ``eos_token_id`` and ``pad_token_id`` (= eos).

    Raises:
        ValueError: `vocab_size` below 514.
    """
    if vocab_size < 514:
        raise InputError(f"vocab_size is {vocab_size}, but CLIP's alphabet alone has 514 ids: pass more")
    alphabet = _alphabet()
    letters = [*alphabet, *(letter + "</w>" for letter in alphabet)]
    merges = _learn_merges(captions, CLIPTokenizer().backend_tokenizer, letters, vocab_size - 514, "</w>")
    tokens = [*letters, *map("".join, merges), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab=_ids(tokens), merges=merges, model_max_length=max_length)


def build_t5_tokenizer(captions: Iterable[str], vocab_size: int = 2000, max_length: int = 16) -> T5Tokenizer:
    """T5's Unigram tokenizer: the words of `captions`, and pieces of words for other text.

    The library's Unigram trainer is not used: it spells out most words of a few thousand short captions, and
    gives other bytes each time. Pieces come from BPE instead; a piece or word scores the logarithm of its
    frequency, a piece 10 less, so that a known word is never split.

    Args:
        captions: training text; printable ASCII outside it stays representable letter by letter.
        vocab_size: upper bound on the number of ids.
        max_length: model_max_length, ``</s>`` included; pass it as the pipeline's max_sequence_length too.

    Returns:
        A tokenizer with pad 0, eos 1, unknown 2 and no sentinel tokens, as T5Config's defaults say.

    Raises:
        ValueError: `vocab_size` below 256.
    """
    if vocab_size < 256:
        raise InputError(f"vocab_size is {vocab_size}, but letters and pieces need 256 ids: pass more")
    captions = list(captions)
    like = T5Tokenizer(extra_ids=0).backend_tokenizer
    words = Counter(word for text in captions for word, _ in like.pre_tokenizer.pre_tokenize_str(text))
    letters = sorted({"▁", *map(chr, range(33, 127))} | {letter for word in words for letter in word})
    pieces = [*letters, *map("".join, _learn_merges(captions, like, letters, vocab_size // 8))]
    known = set(pieces)
    whole = [word for word, _ in words.most_common() if word not in known]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    for piece in pieces:
        seen = sum(count * word.count(piece) for word, count in words.items())
        vocab.append((piece, math.log(max(seen, 0.5) / words.total()) - 10.0))
    vocab += [(word, math.log(words[word] / words.total())) for word in whole[: vocab_size - len(vocab)]]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=max_length)


def build_qwen_tokenizer(
    captions: Iterable[str], vocab_size: int = 2000, max_length: int = 1058
) -> Qwen2Tokenizer:
    """Qwen2's byte-level BPE, learned from `captions`; the pipeline's template prefix becomes 34 tokens.

    Args:
        captions: training text; any other text still tokenizes, byte by byte.
        vocab_size: upper bound on the number of ids; the template and the alphabet take some 400.
        max_length: model_max_length; the pipeline itself truncates at 1024 + 34.

    Returns:
        A tokenizer with Qwen2.5-VL's special tokens; a text encoder's config must name the ids of
        ``<|image_pad|>``, ``<|video_pad|>``, ``<|vision_start|>`` and ``<|vision_end|>``.

    Raises:
        ValueError: the vocabulary is too small to hold the template's words.
    """
    like = Qwen2Tokenizer().backend_tokenizer
    text = QWEN_PREFIX + QWEN_SUFFIX
    for special in QWEN_SPECIALS:
        text = text.replace(special, "\0")
    template = [word for part in text.split("\0") for word, _ in like.pre_tokenizer.pre_tokenize_str(part)]
    merges = _spell(template)
    room = vocab_size - 256 - len(QWEN_SPECIALS) - len(merges)
    if room < 0:
        raise InputError(
            f"vocab_size is {vocab_size}, but alphabet and template need {vocab_size - room}: pass that"
        )
    taken = set(map("".join, merges))
    # The template's merges go first; a learned pair that makes one of its tokens would duplicate the id.
    learned = _learn_merges(captions, like, _alphabet(), room + len(merges))
    merges += [pair for pair in learned if "".join(pair) not in taken][:room]
    tokenizer = Qwen2Tokenizer(
        vocab=_ids([*_alphabet(), *map("".join, merges), *QWEN_SPECIALS]),
        merges=merges,
        model_max_length=max_length,
        additional_special_tokens=list(QWEN_SPECIALS[1:]),
    )
    found = len(tokenizer(QWEN_PREFIX).input_ids)
    if found != QWEN_PREFIX_TOKENS:
        raise InputError(
            f"the template prefix is {found} tokens, the pipeline drops {QWEN_PREFIX_TOKENS}: fix QWEN_PREFIX"
        )
    return tokenizer


def _alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in a fixed order."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    """Number the tokens in order, each once."""
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def _learn_merges(
    captions: Iterable[str],
    like: Tokenizer,
    letters: Sequence[str],
    count: int,
    end_of_word: str | None = None,
) -> Merges:
    """At most `count` BPE merges, most frequent first, under the normaliser and pre-tokenizer of `like`.

    Every letter is declared beforehand, as a special token: ties between pairs are broken by id, and the
    trainer would number letters with a suffix in the order of a hash table.
    """
    tokenizer = Tokenizer(models.BPE())
    if like.normalizer is not None:
        tokenizer.normalizer = like.normalizer
    tokenizer.pre_tokenizer = like.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=count + len(letters),
        special_tokens=list(letters),
        show_progress=False,
    )
    if end_of_word is not None:
        trainer.end_of_word_suffix = end_of_word
    tokenizer.train_from_iterator(list(captions), trainer)
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]][:count]


def _spell(words: Iterable[str]) -> Merges:
    """Merges that make each word one token: BPE is run on it, and what is left is merged left to right."""
    rank: dict[tuple[str, str], int] = {}
    for word in dict.fromkeys(words):
        pieces = list(word)
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:], strict=False))
            known = [(rank[pair], i) for i, pair in enumerate(pairs) if pair in rank]
            i = min(known)[1] if known else 0
            rank.setdefault(pairs[i], len(rank))
            pieces[i : i + 2] = ["".join(pairs[i])]
    return list(rank)
