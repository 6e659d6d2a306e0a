"""Low rank: singular values, the subspaces a head reads and writes, virtual weights and composition.

Part 2 section 5 and Part 1 section 5 of the articles; the paper's "Virtual Weights", "Subspaces
and Residual Stream Bandwidth", its footnote on the singular value decomposition of W_OV, and
"Three Kinds of Composition". Every score has its random baseline here too.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


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


def dimensions_left(cfg: "transformer_lens.HookedTransformerConfig") -> int:
    """The dimensions that layer norm leaves to read and write: all but the mean it subtracts."""
    return cfg.d_model - ((cfg.normalization_type or "").startswith("LN"))


def column_space(W: Float[Tensor, "d_model d_head"]) -> Float[Tensor, "d_model rank"]:
    """An orthonormal basis of what the columns of W span.

    `W_V` [d_model, d_head] spans the subspace its head reads, `W_O.T` the one it writes.
    """
    U, S, _ = torch.linalg.svd(W, full_matrices=False)
    return U[:, : rank(S, tuple(W.shape))]


def overlap(U: Float[Tensor, "d_model k"], V: Float[Tensor, "d_model l"]) -> float:
    """‖UᵀV‖²_F / k for orthonormal U and V: the mean squared cosine of their principal angles.

    1 where U's subspace lies in V's, 0 at right angles, l / d_model on average for a random V. It is the
    share of U: where l is not k, not that of V. 0 for an empty U.
    """
    return ((U.T @ V).square().sum() / max(1, U.shape[1])).item()


def virtual_weights(
    W_O: Float[Tensor, "writer d_head d_model"], W_V: Float[Tensor, "reader d_model d_head"]
) -> Float[Tensor, "writer reader d_head d_head"]:
    """[w, r] is W_O[w] W_V[r], of a head that writes and a later one that reads (Part 1, section 5).

    The stream drops out: what is left joins the writer's results straight to the reader's values.
    """
    return W_O[:, None] @ W_V[None]


def composition(
    writers: Float[Tensor, "writer a d_model"], readers: Float[Tensor, "reader d_model b"]
) -> Float[Tensor, "writer reader"]:
    """‖W R‖ / (‖W‖ ‖R‖), Frobenius norms, for every pair: how much of what W writes R reads.

    Of `W_O` and a reader's `W_V` it is the size of a virtual weight made a fair score (Part 1, section 5).
    0 for a head whose matrix is all zeros.
    """
    sizes = virtual_weights(writers, readers).norm(dim=(-2, -1))
    largest = writers.norm(dim=(-2, -1))[:, None] * readers.norm(dim=(-2, -1))
    return sizes / largest.clamp_min(torch.finfo(sizes.dtype).tiny)


def compressed(
    left: Float[Tensor, "*head d_model d_head"], right: Float[Tensor, "*head d_head d_model"]
) -> Float[Tensor, "*head k d_model"]:
    """R right, where left = Q R: d_head rows that stand for all d_model of left right.

    Q's columns are orthonormal, so ‖left right X‖ = ‖R right X‖ for every X.
    """
    return torch.linalg.qr(left, mode="r").R @ right


def composition_scores(
    W_V: Float[Tensor, "writer d_model d_head"],
    W_O: Float[Tensor, "writer d_head d_model"],
    reads: Float[Tensor, "reader d_model d_head"],
    other: Float[Tensor, "reader d_model d_head"],
) -> Float[Tensor, "writer reader"]:
    """The paper's composition scores ‖W_OV W‖ / (‖W_OV‖ ‖W‖), of a head's whole W_OV and a later head's W.

    W = reads otherᵀ: W_OV itself for V-composition (W_V, W_Oᵀ), W_QK for Q-composition (W_Q, W_K), its
    transpose for K-composition (W_K, W_Q). Never built: each is its d_head `compressed` rows or columns.
    """
    return composition(compressed(W_V, W_O), compressed(other, reads.mT).mT)


def random_compositions(
    d_model: int, d_head: int, samples: int, generator: torch.Generator
) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
    """(`composition_scores`, `composition` of W_O and a reader) of heads whose matrices are all random.

    One baseline for V, K and Q: their matrices are of the same shapes. Numbers are standard normal. For
    heads of a folded model `d_model` is the dimensions that layer norm leaves.
    """
    whole, factors = [], []
    for _ in range(samples):
        random = torch.randn(4, 1, d_model, d_head, generator=generator)
        W_V, W_O, reads, other = random[0], random[1].mT, random[2], random[3]
        whole.append(composition_scores(W_V, W_O, reads, other))
        factors.append(composition(W_O, reads))
    return torch.stack(whole).flatten(), torch.stack(factors).flatten()


def random_overlaps(
    dimensions: int, k: int, samples: int, generator: torch.Generator
) -> Float[Tensor, " samples"]:
    """`overlap` of random pairs of k-dimensional subspaces of a space of so many dimensions.

    All directions are alike, so the first subspace of each pair may be that of the first k axes.
    """
    axes = torch.eye(dimensions, k)
    bases = (torch.linalg.qr(torch.randn(dimensions, k, generator=generator)).Q for _ in range(samples))
    return torch.tensor([overlap(axes, basis) for basis in bases])


def nearly_equal(S: Float[Tensor, " k"], gap: float = 0.01) -> list[list[int]]:
    """Runs of singular values, by place from 1, each less than `gap` (1 %) below the one before it.

    What changes the matrix by that fraction may turn such singular directions into one another, so one of
    them alone means nothing; the subspace that a run spans does.
    """
    runs = [[1]]
    for place, (before, value) in enumerate(zip(S[:-1].tolist(), S[1:].tolist(), strict=True), start=2):
        if before - value < gap * before:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [run for run in runs if len(run) > 1]
