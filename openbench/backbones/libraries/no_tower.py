"""The second text tower of CLIPN's weights, as a copy of the first with other weights."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from openbench.backbones.checkpoints import apply_weights

_PROMPT = "prompt_no"
_NEGATED = ("transformer_no.", "token_embedding_no.", "positional_embedding_no", "ln_final_no.", "text_projection_no")


def without_no(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of the model itself, and those of its `no` tower under the names of the first tower.

    CLIPN adds the mean of its learnt prompts (k, length, width) to the embeddings of all tokens. Positions are added to
    these too, so the mean becomes part of the positions. The second dictionary is empty where there is no such tower.

    Reference: Wang et al., ICCV 2023, arXiv:2308.12213; xmed-lab/CLIPN.
    """
    negated = {key: value for key, value in state.items() if key.startswith(_NEGATED)}
    plain = {key: value for key, value in state.items() if key not in negated and key != _PROMPT}
    renamed = {key.replace("_no", "", 1): value for key, value in negated.items()}
    if _PROMPT in state and "positional_embedding" in renamed:
        renamed["positional_embedding"] = renamed["positional_embedding"] + state[_PROMPT].mean(dim=0)
    return plain, renamed


def no_tower(model: Any, weights: Mapping[str, Tensor], where: str) -> Any:
    """Return a copy of a model whose text tower has other weights; its image tower is gone.

    Args:
        model: open_clip's.
        weights: of the text tower.
        where: their source, for messages.

    Raises:
        CheckpointError: weights are missing, or do not fit.
    """
    visual, model.visual = model.visual, torch.nn.Identity()
    try:
        found = copy.deepcopy(model)
    finally:
        model.visual = visual
    rest = {key: value for key, value in found.state_dict().items() if key.startswith("logit_")}
    apply_weights(found, {**rest, **weights}, where)
    return found
