"""Prompts that a text tower would not read to their end are refused, whatever the tokenizer pads and ends with."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from openbench.backbones.libraries.zero_shot import tokens_and_cut
from openbench.errors import ConfigError

from ..tiny_clip import backbone, library  # noqa: TID252 — the tests are no package

CONTEXT = 8
WORDS = {"[PAD]": 0, "[START]": 1, "[END]": 2, "word": 3}


def own_tokenizer(folder, form: str, padding: str):
    """Hugging Face's, with a vocabulary of one word: what open_clip loads for a model of that library."""
    made = Tokenizer(WordLevel(WORDS, unk_token="word"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single=form, special_tokens=[("[START]", 1), ("[END]", 2)])
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token=padding).save_pretrained(folder)
    return library().tokenizer.HFTokenizer(str(folder), context_length=CONTEXT)


@pytest.mark.parametrize(
    ("form", "padding", "most"),
    [("[START] $A [END]", "[PAD]", 6), ("$A [END]", "[END]", 7), ("$A", "[PAD]", 8)],
    ids=["as BERT", "as SigLIP, padded with its end", "without an end"],
)
def test_a_prompt_is_whole_up_to_its_last_place(tmp_path, form, padding, most):
    tokenizer = own_tokenizer(tmp_path, form, padding)
    fits, cut = " ".join(["word"] * most), " ".join(["word"] * (most + 1))
    tokens, none = tokens_and_cut(tokenizer, ["", "word", fits])
    assert (tokens.shape, none) == ((3, CONTEXT), None)
    assert torch.equal(tokens, tokenizer(["", "word", fits]))
    assert int((tokens[2] == 3).sum()) == most
    assert tokens_and_cut(tokenizer, [fits, cut, "word"])[1] == 1


def test_a_model_refuses_class_names_words_and_vectors_that_do_not_fit():
    long = " ".join(["cat"] * 30)
    with pytest.raises(ConfigError, match=r"prompt 'a photo of a cat cat .*' is too long"):
        backbone(("dog", long))
    tower = backbone(("dog", " ".join(["cat"] * 12)), templates=("{}",)).text_towers["text"]
    with pytest.raises(ConfigError, match=r"prompt 'cat .*' is too long"):
        tower.embed(["dog", long])
    with pytest.raises(ConfigError, match=r"12 vectors and the class name 'cat .*' exceed its 24 tokens"):
        tower.embed_context(torch.zeros(12, tower.width))
