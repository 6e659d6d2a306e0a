"""Low rank: singular values, the subspaces a head reads and writes, and virtual weights.

Part 2 section 5 and Part 1 section 5 of the articles; the paper's "Virtual Weights", "Subspaces
and Residual Stream Bandwidth" and its footnote on the singular value decomposition of W_OV.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def rank(S: Float[Tensor, " k"], shape: tuple[int, int]) -> int:
    """How many singular values stand above rounding: S_max · max(shape) · eps, as in `matrix_rank`."""
    return int((S > S.max() * max(shape) * torch.finfo(S.dtype).eps).sum())


def singular_values(
    left: Float[Tensor, "*head rows k"], right: Float[Tensor, "*head k columns"]
) -> Float[Tensor, "*head k"]:
    """The k singular values of left right, from its factors: those of R_left R_rightᵀ, k x k.

    Orthonormal columns change no singular value, so the Qs of left = Q R and rightᵀ = Q R drop out.
    """
    R_left, R_right = torch.linalg.qr(left, mode="r").R, torch.linalg.qr(right.mT, mode="r").R
    return torch.linalg.svdvals(R_left @ R_right.mT)


def column_space(W: Float[Tensor, "d_model d_head"]) -> Float[Tensor, "d_model rank"]:
    """An orthonormal basis of what the columns of W span.

    `W_V` [d_model, d_head] spans the subspace its head reads, `W_O.T` the one it writes.
    """
    U, S, _ = torch.linalg.svd(W, full_matrices=False)
    return U[:, : rank(S, tuple(W.shape))]


def overlap(U: Float[Tensor, "d_model k"], V: Float[Tensor, "d_model l"]) -> float:
    """‖UᵀV‖²_F / k for orthonormal U and V: the mean squared cosine of their principal angles.

    1 for the same subspace, 0 at right angles, l / d_model on average for a random V.
    """
    return ((U.T @ V).square().sum() / U.shape[1]).item()


def virtual_weights(
    W_O: Float[Tensor, "writer d_head d_model"], W_V: Float[Tensor, "reader d_model d_head"]
) -> Float[Tensor, "writer reader d_head d_head"]:
    """W_O W_V for every pair of a head that writes and a later one that reads (Part 1, section 5).

    The stream drops out: what is left joins the writer's results straight to the reader's values.
    """
    return W_O[:, None] @ W_V[None]
