"""Prompts as tokens, refused where a text tower would not read their ends."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from openbench.errors import ConfigError

_SHOWN = 100  # letters of a prompt in a message


def tokenised(tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """Return the tokens (m, context) of whole prompts.

    Args:
        tokenizer: open_clip's, which cuts what is too long without a word.
        prompts: m texts.

    Raises:
        ConfigError: a prompt is longer than the text tower's context.
    """
    tokens, cut = tokens_and_cut(tokenizer, prompts)
    if cut is not None:
        prompt = prompts[cut] if len(prompts[cut]) <= _SHOWN else f"{prompts[cut][:_SHOWN]}…"
        raise ConfigError(
            f"prompt {prompt!r} is too long for the text tower, which would not read its end — found more than "
            f"{tokens.shape[1]} tokens — allowed: up to {tokens.shape[1]}, start and end among them — shorten the "
            "template, or the class name or word in it"
        )
    return tokens


def tokens_and_cut(tokenizer: Any, prompts: Sequence[str]) -> tuple[Tensor, int | None]:
    """Return the tokens (m, context) of prompts, and the place of the first that is cut; None if all are whole.

    One more place for tokens changes nothing for a whole prompt and holds padding; if the prompt is cut, it holds a
    token, or moves the end. Padding cannot be told from other tokens otherwise: some tokenizers pad with their end.
    """
    tokens: Tensor = tokenizer(list(prompts))
    length = tokens.shape[1]
    longer: Tensor = tokenizer([*prompts, ""], context_length=length + 1)
    whole = (longer[:-1, :length] == tokens).all(dim=1) & (longer[:-1, length] == longer[-1, length])
    return tokens, None if bool(whole.all()) else int(whole.int().argmin())
