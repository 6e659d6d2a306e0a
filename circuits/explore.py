"""What a reader asks for: any head, prompt and words of any model, with a default for each.

`circuits_part1.explore` and `circuits_part2.explore` run the articles' sections on it.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from circuits import Fault, architecture, residual, vocabulary

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


@dataclass(frozen=True)
class Asked:
    """What the sections look at in a model."""

    prompt: str
    head: tuple[int, int]  # layer, head
    words: list[int]  # token ids
    answer: int  # the token that the model predicts after the prompt
    unfolded: "transformer_lens.HookedTransformer | None"  # the model before its norm was folded, if any


def ask(
    model: "transformer_lens.HookedTransformer",
    prompt: str,
    head: tuple[int, int] | None = None,
    words: list[str] | None = None,
    unfolded: "transformer_lens.HookedTransformer | None" = None,
) -> Asked:
    """What is asked of a folded model, its defaults filled in.

    `head` (layer, head) defaults to the one that adds most to the logit of the predicted token at the last
    position; `words` to the distinct tokens of the prompt. Raises Fault for a prompt that the model cannot
    be run on, a head that it does not have, and a word that is not one token.
    """
    architecture.check(model.cfg, folded=True)
    if head is not None and tuple(head) not in residual.heads(model):
        last = f"{model.cfg.n_layers - 1}.{model.cfg.n_heads - 1}"
        raise Fault("no head {}.{}: {} has heads 0.0 to {}".format(*head, model.cfg.model_name, last))
    tokens, logits, cache = residual.run(model, prompt)
    if words is None:
        chosen = vocabulary.own_tokens(model, prompt)
    else:
        chosen = list(dict.fromkeys(vocabulary.single_token(model, word) for word in words))
    answer, pos = int(logits[-1].argmax()), len(tokens) - 1
    if head is None:
        written, scale = residual.pieces(model, cache, pos), residual.final_scale(model, cache, pos)
        centred = architecture.centres(model.cfg)
        shares = residual.logit_shares(written, scale, model.W_U, model.b_U, answer, centred)
        head = max(residual.heads(model), key=lambda lh: shares["{}.{}".format(*lh)])
    return Asked(prompt, tuple(head), chosen, answer, unfolded)


def folder(model: str, head: tuple[int, int] | None, prompt: str, words: list[str] | None = None) -> str:
    """The name of a results folder: "<model>-<head>-<short hash of the prompt, and of the words if any>"."""
    name = re.sub(r"[^\w.-]+", "-", model).strip(".-") or "model"
    which = [] if head is None else ["{}.{}".format(*head)]
    asked = "\0".join([prompt, *(words or ())])
    return "-".join([name, *which, hashlib.sha256(asked.encode()).hexdigest()[:8]])
