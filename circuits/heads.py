"""One attention head: its two matrices, its three steps, its tensor form, its pattern in one step.

Part 2 of the articles; the paper's "Attention Heads are Independent and Additive" to
"Observations about Attention Heads". Vectors are rows here, as TransformerLens keeps them, so
every matrix is the transpose of the articles': their W_OV = W_O W_V is `(W_V W_O)ᵀ`.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


def factored(
    left: Float[Tensor, "rows k"], right: Float[Tensor, "k columns"]
) -> "transformer_lens.FactoredMatrix":
    """The product left right, kept as its factors."""
    from transformer_lens import FactoredMatrix

    return FactoredMatrix(left, right)


def W_OV(
    model: "transformer_lens.HookedTransformer", layer: int, head: int
) -> "transformer_lens.FactoredMatrix":
    """W_V W_O [d_model, d_model] of rank d_head, kept as its two factors: what a head moves."""
    attn = model.blocks[layer].attn
    return factored(attn.W_V[head], attn.W_O[head])


def W_QK(
    model: "transformer_lens.HookedTransformer", layer: int, head: int
) -> "transformer_lens.FactoredMatrix":
    """W_Q W_Kᵀ [d_model, d_model] of rank d_head, kept as its two factors: where a head looks."""
    attn = model.blocks[layer].attn
    return factored(attn.W_Q[head], attn.W_K[head].T)


def W_QK_with_biases(
    model: "transformer_lens.HookedTransformer", layer: int, head: int
) -> "transformer_lens.FactoredMatrix":
    """W_QK [d_model + 1, d_model + 1] for a stream with an always-1 column, which holds the biases."""
    attn = model.blocks[layer].attn
    W_Q = torch.cat([attn.W_Q[head], attn.b_Q[head][None]])
    W_K = torch.cat([attn.W_K[head], attn.b_K[head][None]])
    return factored(W_Q, W_K.T)


def concatenated(
    z: Float[Tensor, "pos head d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "pos d_model"]:
    """The usual description of a layer: stack the result vectors, multiply once (Part 2, section 2)."""
    return z.flatten(1) @ W_O.flatten(0, 1)


def summed(
    z: Float[Tensor, "pos head d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "pos d_model"]:
    """The paper's description: every head writes through its own slice of W_O, and the writes add."""
    return sum(z[:, head] @ W_O[head] for head in range(len(W_O)))


def three_steps(
    x: Float[Tensor, "pos d_model"],
    A: Float[Tensor, "dst src"],
    W_V: Float[Tensor, "d_model d_head"],
    b_V: Float[Tensor, " d_head"],
    W_O: Float[Tensor, "d_head d_model"],
) -> tuple[Float[Tensor, "pos d_head"], Float[Tensor, "pos d_model"]]:
    """(r, h): values, then their mix by the pattern, then the write (Part 2, section 3).

    `x` is the stream as the head sees it, after layer norm; `A` is its attention pattern. In a folded model
    `b_V` is zero: folding moves it into b_O.
    """
    v = x @ W_V + b_V
    r = A @ v
    return r, r @ W_O


def pattern_in_one_step(
    x: Float[Tensor, "pos d_model"],
    W_QK: "transformer_lens.FactoredMatrix",
    d_head: int,
    divisor: float | None = None,
    window: int | None = None,
) -> tuple[Float[Tensor, "dst src"], Float[Tensor, "dst src"]]:
    """(A, scores): the pattern from x W_QK xᵀ alone, without a query or a key (Part 2, section 4).

    `W_QK` is `W_QK_with_biases`: x is given the always-1 column here. Scores are divided by
    sqrt(d_head), which the paper folds into W_Q, or by another `divisor` (`score_divisor`); a score of the
    future is -inf before the softmax, and so is one of `window` (`attention_window`) or more tokens ago;
    the scores returned are all of them, the future's too.
    """
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    scores = x @ W_QK.AB @ x.T / (divisor or d_head**0.5)
    unseen = torch.ones_like(scores).triu(1).bool()
    if window is not None:
        unseen |= torch.ones_like(scores).tril(-window).bool()
    return scores.masked_fill(unseen, -torch.inf).softmax(-1), scores


def score_divisor(model: "transformer_lens.HookedTransformer", layer: int) -> float:
    """What a layer's scores are divided by: sqrt(d_head) in the articles' models, 1 in GPT-Neo."""
    return float(model.blocks[layer].attn.attn_scale)


def divides_by_root(model: "transformer_lens.HookedTransformer", layer: int) -> bool:
    """Whether that is the usual sqrt(d_head)."""
    return abs(score_divisor(model, layer) / model.cfg.d_head**0.5 - 1) < 1e-6


def attention_window(model: "transformer_lens.HookedTransformer", layer: int) -> int | None:
    """How many tokens, itself among them, a token of a layer with local attention sees; None for all."""
    return model.cfg.window_size if model.blocks[layer].attn.attn_type == "local" else None


def reparametrised(
    left: Float[Tensor, "d_model d_head"],
    right: Float[Tensor, "d_head d_model"],
    M: Float[Tensor, "d_head d_head"],
) -> tuple[Float[Tensor, "d_model d_head"], Float[Tensor, "d_head d_model"]]:
    """Other factors of the same product: (left M, M⁻¹ right) (Part 2, section 6).

    W_V and W_O, or W_Q and W_Kᵀ: what lies between the two factors means nothing on its own. This M is the
    transpose of the article's, whose vectors are columns.
    Raises torch.linalg.LinAlgError where M is singular.
    """
    return left @ M, torch.linalg.solve(M, right)


def said_twice(
    d_vocab: int, bos: int, length: int, rows: int, generator: torch.Generator
) -> Int[Tensor, "rows pos"]:
    """Prompts of `length` random tokens said twice, BOS first: only position and repetition are in them."""
    once = torch.randint(d_vocab, (rows, length), generator=generator)
    return torch.cat([torch.full((rows, 1), bos), once, once], 1)


def looks_back(A: Float[Tensor, "rows head dst src"], by: int, start: int) -> Float[Tensor, " head"]:
    """The mean weight that positions from `start` on give to the position `by` before them.

    `by` 1 is the previous-token score. Where a text of n tokens is said twice, `by` n - 1 in the second
    turn is the induction score: the token after this one's first standing (Part 1, section 3).
    """
    return A.diagonal(-by, -2, -1)[..., start - by :].mean((0, 2))
