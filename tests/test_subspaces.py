"""Low rank, the subspaces that a head reads and writes, and the virtual weights between two heads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.testing import assert_close

from circuits import subspaces

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 6)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_rank(rank, rows, columns, seed):
    """A random matrix [rows, columns] of the given rank."""
    return randn(rows, rank, seed=seed) @ randn(rank, columns, seed=seed + 1)


def projector(W):
    """Onto what the columns of W span, by the normal equations and not by a decomposition."""
    return W @ torch.linalg.solve(W.T @ W, W.T)


def test_a_wrong_shape_is_refused():
    """Torch itself would count the singular values of both matrices as one's."""
    with pytest.raises(TypeCheckError, match="S"):
        subspaces.rank(torch.ones(2, 3), (3, 3))


# ---- rank --------------------------------------------------------------------------------------------


def test_rank_by_hand():
    """The article's W_OV: one singular value, 1.414, of three."""
    W = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 1, 0]])
    S = torch.linalg.svdvals(W)
    assert S[0].item() == pytest.approx(2**0.5)
    assert subspaces.rank(S, (3, 3)) == 1
    assert type(subspaces.rank(S, (3, 3))) is int
    assert subspaces.rank(torch.zeros(3), (3, 3)) == 0
    assert subspaces.rank(torch.tensor([0.0, 5, 1e-9, 2]), (4, 4)) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rank_is_judged_by_the_larger_side_the_largest_value_and_the_precision(dtype):
    eps = torch.finfo(dtype).eps
    for size in (1.0, 1024.0, 2.0**-20):
        at, above = 16 * eps * size, 17 * eps * size
        assert subspaces.rank(torch.tensor([size, size, above, at], dtype=dtype), (4, 16)) == 3
        assert subspaces.rank(torch.tensor([size, size, above, at], dtype=dtype), (16, 4)) == 3


@given(seeds, st.integers(0, 5), st.integers(5, 9), st.integers(5, 9), st.sampled_from([1e-6, 1, 1e6]))
def test_rank_is_that_of_torch(seed, rank, rows, columns, size):
    W = size * of_rank(rank, rows, columns, seed)
    assert subspaces.rank(torch.linalg.svdvals(W), (rows, columns)) == rank
    assert subspaces.rank(torch.linalg.svdvals(W), W.shape) == torch.linalg.matrix_rank(W)


# ---- the subspaces of a head -------------------------------------------------------------------------


def test_column_space_by_hand():
    """The article's head of one dimension reads 1 and 2 together and writes 3, at right angles."""
    W_V, W_O = torch.tensor([[1.0], [1], [0]]), torch.tensor([[0.0, 0, 2]])
    reads, writes = subspaces.column_space(W_V), subspaces.column_space(W_O.T)
    assert_close(reads.abs(), torch.tensor([[0.5**0.5], [0.5**0.5], [0]]))
    assert reads[0] == pytest.approx(reads[1].item())
    assert_close(writes.abs(), torch.tensor([[0.0], [0], [1]]))
    assert subspaces.overlap(reads, writes) == 0


@given(seeds, st.integers(0, 4), st.integers(4, 8), st.integers(4, 10))
def test_column_space_is_orthonormal_and_spans(seed, rank, d_model, d_head):
    """Wide and rank-deficient matrices among them."""
    W = of_rank(rank, d_model, d_head, seed)
    U = subspaces.column_space(W)
    assert U.shape == (d_model, rank)
    assert_close(U.T @ U, torch.eye(rank, dtype=W.dtype))
    assert_close(U @ (U.T @ W), W)


def test_column_space_of_one_direction_repeated():
    W = torch.tensor([[1.0, 2, -1], [2, 4, -2], [3, 6, -3], [0, 0, 0]])
    U = subspaces.column_space(W)
    assert_close(U.abs().flatten(), torch.tensor([1, 2, 3, 0]) / 14**0.5)


@pytest.mark.parametrize("matrix", ["W_V", "W_O"])
def test_a_head_writes_and_reads_within_its_subspaces(two_layers, matrix):
    model, cache = two_layers.model, two_layers.cache
    if matrix == "W_O":  # what the head writes has no part outside the subspace
        U = subspaces.column_space(model.W_O[1, 2].T)
        written = cache["z", 1][0, :, 2] @ model.W_O[1, 2]
        assert_close(written @ U @ U.T, written)
    else:  # its values do not change where the stream has only the part inside
        U = subspaces.column_space(model.W_V[1, 2])
        x = cache["normalized", 1, "ln1"][0]
        assert_close((x @ U @ U.T) @ model.W_V[1, 2] + model.b_V[1, 2], cache["v", 1][0, :, 2])
    assert U.shape == (model.cfg.d_model, model.cfg.d_head)


# ---- overlap -----------------------------------------------------------------------------------------


def test_overlap_by_hand():
    e = torch.eye(4, dtype=torch.float64)
    assert subspaces.overlap(e[:, :2], e[:, :2]) == 1
    assert subspaces.overlap(e[:, :2], e[:, 2:]) == 0
    assert subspaces.overlap(e[:, :2], e[:, 1:3]) == 0.5
    diagonal = torch.tensor([[0.6], [0.8], [0], [0]], dtype=torch.float64)  # cosines 0.6 and 0.8
    assert subspaces.overlap(e[:, :1], diagonal) == pytest.approx(0.36)
    assert subspaces.overlap(e[:, 1:2], -diagonal) == pytest.approx(0.64)
    # Of unequal dimensions: the share of U's directions that V has, then the other way round
    assert subspaces.overlap(e[:, :1], e[:, :3]) == 1
    assert subspaces.overlap(e[:, :3], e[:, :1]) == pytest.approx(1 / 3)


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(4, 8))
def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles(seed, k, other, d_model):
    W, X = randn(d_model, k, seed=seed), randn(d_model, other, seed=seed + 1)
    U, V = subspaces.column_space(W), subspaces.column_space(X)
    cosines = torch.linalg.svdvals(U.T @ V)
    assert subspaces.overlap(U, V) == pytest.approx((cosines**2).sum().item() / k)
    assert subspaces.overlap(U, V) == pytest.approx(
        (projector(W) @ projector(X)).trace().item() / k, rel=1e-5
    )
    assert -1e-12 <= subspaces.overlap(U, V) <= 1 + 1e-12


@given(seeds, st.integers(1, 4), st.integers(4, 8))
def test_overlap_is_of_subspaces_and_symmetric(seed, k, d_model):
    """Another basis of either subspace does not change it; nor does the order, for equal dimensions."""
    W, X = randn(d_model, k, seed=seed), randn(d_model, k, seed=seed + 1)
    M = randn(k, k, seed=seed + 2) + 3 * k * torch.eye(k, dtype=W.dtype)
    U, V = subspaces.column_space(W), subspaces.column_space(X)
    once = subspaces.overlap(U, V)
    assert subspaces.overlap(subspaces.column_space(W @ M), V) == pytest.approx(once, abs=1e-9)
    assert subspaces.overlap(U, subspaces.column_space(X @ M)) == pytest.approx(once, abs=1e-9)
    assert subspaces.overlap(V, U) == pytest.approx(once, abs=1e-12)
    assert subspaces.overlap(U, subspaces.column_space(W @ M)) == pytest.approx(1)
    beside = torch.linalg.qr(U, mode="complete").Q[:, k:]
    assert subspaces.overlap(U, beside) == pytest.approx(0, abs=1e-12)


def test_overlap_of_random_subspaces_is_the_share_of_the_dimensions():
    """The baseline beside the article's scores: 3 of 12 dimensions, whatever the other's dimension."""
    scores = [
        subspaces.overlap(
            subspaces.column_space(randn(12, 2, seed=seed)),
            subspaces.column_space(randn(12, 3, seed=1000 + seed)),
        )
        for seed in range(400)
    ]
    assert sum(scores) / len(scores) == pytest.approx(3 / 12, abs=0.02)


# ---- virtual weights ---------------------------------------------------------------------------------


def test_virtual_weights_by_hand():
    """The article's writer of dimension 3 and two readers: A, of twice dimension 3, and B, of dimension 1."""
    W_O = torch.tensor([[[0.0, 0, 1]]])
    W_I = torch.tensor([[[0.0], [0], [2]], [[1.0], [0], [0]]])
    virtual = subspaces.virtual_weights(W_O, W_I)
    assert virtual.flatten().tolist() == [2, 0]
    assert_close(0.7 * virtual.flatten(), torch.tensor([1.4, 0]))


@given(seeds, sizes, sizes, sizes, sizes)
def test_virtual_weights_are_the_product_of_each_pair(seed, writers, readers, d_head, d_model):
    W_O, W_V = randn(writers, d_head, d_model, seed=seed), randn(readers, d_model, d_head, seed=seed + 1)
    virtual = subspaces.virtual_weights(W_O, W_V)
    assert virtual.shape == (writers, readers, d_head, d_head)
    for writer in range(writers):
        for reader in range(readers):
            assert_close(virtual[writer, reader], W_O[writer] @ W_V[reader])


def test_values_of_the_second_layer_come_through_virtual_weights(two_layers):
    """A reader's values, piece by piece: from the tokens, from each head of layer 0, from the biases."""
    model, cache = two_layers.model, two_layers.cache
    centred = model.W_V[1] - model.W_V[1].mean(1, keepdim=True)  # the mean that layer norm subtracts
    virtual = subspaces.virtual_weights(model.W_O[0], centred)
    scale = cache["blocks.1.ln1.hook_scale"][0]  # [pos, 1]
    others = (cache["hook_embed"] + cache["hook_pos_embed"])[0] + model.b_O[0]
    for reader in range(model.cfg.n_heads):
        received = sum(cache["z", 0][0, :, h] @ virtual[h, reader] for h in range(model.cfg.n_heads))
        values = (received + others @ centred[reader]) / scale + model.b_V[1, reader]
        assert_close(values, cache["v", 1][0, :, reader])


# ---- singular values from factors --------------------------------------------------------------------


@given(seeds, st.integers(0, 4), st.integers(4, 9), st.integers(4, 9), st.integers(1, 3))
def test_singular_values_of_a_product_from_its_factors(seed, rank, rows, columns, heads):
    """Those of the product itself, for every head, and where the factors are not of full rank."""
    left = torch.stack([of_rank(rank, rows, 4, seed + 2 * h) for h in range(heads)])
    right = torch.stack([randn(4, columns, seed=seed + 2 * h + 1) for h in range(heads)])
    S = subspaces.singular_values(left, right)
    assert S.shape == (heads, 4)
    assert_close(S, torch.linalg.svdvals(left @ right)[:, :4], atol=1e-9, rtol=1e-9)


# ---- composition, and what is random -----------------------------------------------------------------


def test_composition_by_hand():
    """A writer of dimensions 1 and 2 and readers of 1 alone, of both, and of neither."""
    writer = torch.tensor([[[2.0, 0, 0], [0, 2, 0]]])
    readers = torch.tensor([[[1.0, 0], [0, 0], [0, 0]], [[0, 3], [3, 0], [0, 0]], [[0, 0], [0, 0], [1, 1]]])
    expected = [0.5**0.5, 0.5**0.5, 0]
    assert subspaces.composition(writer, readers).flatten().tolist() == pytest.approx(expected)


@given(seeds, sizes, sizes, sizes, sizes)
def test_composition_scores_are_those_of_the_whole_matrices(seed, writers, readers, d_head, d_model):
    """Wide factors among them, of more columns than rows."""
    W_V, W_O = randn(writers, d_model, d_head, seed=seed), randn(writers, d_head, d_model, seed=seed + 1)
    reads, other = (
        randn(readers, d_model, d_head, seed=seed + 2),
        randn(readers, d_model, d_head, seed=seed + 3),
    )
    scores = subspaces.composition_scores(W_V, W_O, reads, other)
    assert scores.shape == (writers, readers)
    for w in range(writers):
        for r in range(readers):
            first, second = W_V[w] @ W_O[w], reads[r] @ other[r].T
            plain = (first @ second).norm() / (first.norm() * second.norm())
            assert_close(scores[w, r], plain)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_composition_scores_are_those_of_transformer_lens(two_layers, kind):
    model = two_layers.model
    reads, other = {
        "Q": (model.W_Q[1], model.W_K[1]),
        "K": (model.W_K[1], model.W_Q[1]),
        "V": (model.W_V[1], model.W_O[1].mT),
    }[kind]
    theirs = model.all_composition_scores(kind)[0, :, 1]
    assert_close(subspaces.composition_scores(model.W_V[0], model.W_O[0], reads, other), theirs)


def test_random_compositions_are_those_of_random_matrices():
    """Two independent ways to the same mean and deviation; the factors' mean square is 1 / d_model."""
    whole, factors = subspaces.random_compositions(20, 3, 2000, torch.Generator().manual_seed(0))
    plain = []
    for seed in range(2000):
        W_V, W_O, reads, other = randn(4, 20, 3, seed=seed)
        first, second = W_V @ W_O.T, reads @ other.T
        plain.append((first @ second).norm() / (first.norm() * second.norm()))
    plain = torch.stack(plain).float()
    assert whole.shape == factors.shape == (2000,)
    assert whole.mean().item() == pytest.approx(plain.mean().item(), rel=0.02)
    assert whole.std().item() == pytest.approx(plain.std().item(), rel=0.08)
    assert factors.square().mean().item() == pytest.approx(1 / 20, rel=0.02)


def test_random_overlaps_are_those_of_random_pairs():
    """The mean is k / dimensions, and the deviation that of pairs that are both drawn."""
    found = subspaces.random_overlaps(11, 3, 2000, torch.Generator().manual_seed(0))
    pairs = torch.tensor([
        subspaces.overlap(*(subspaces.column_space(randn(11, 3, seed=2 * seed + i)) for i in (0, 1)))
        for seed in range(2000)
    ])  # fmt: skip
    assert found.shape == (2000,)
    assert found.mean().item() == pytest.approx(3 / 11, rel=0.02)
    assert found.std().item() == pytest.approx(pairs.std().item(), rel=0.08)


def test_what_is_random_comes_from_its_generator_alone():
    before = torch.get_rng_state()
    for draw in (
        lambda seed: torch.stack(subspaces.random_compositions(9, 2, 5, torch.Generator().manual_seed(seed))),
        lambda seed: subspaces.random_overlaps(9, 2, 5, torch.Generator().manual_seed(seed)),
    ):
        assert torch.equal(draw(1), draw(1))
        assert not torch.equal(draw(1), draw(2))
        assert draw(1).unique().numel() == draw(1).numel()
    assert torch.equal(before, torch.get_rng_state())


def test_nearly_equal_by_hand():
    S = torch.tensor([5, 4.99, 4.9, 4.89, 4.88, 3, 1, 1], dtype=torch.float64)
    assert subspaces.nearly_equal(S) == [[1, 2], [3, 4, 5], [7, 8]]
    assert subspaces.nearly_equal(S, gap=0.001) == [[7, 8]]
    assert subspaces.nearly_equal(S, gap=0.02) == [[1, 2, 3, 4, 5], [7, 8]]
    assert subspaces.nearly_equal(torch.tensor([100.0, 99])) == []  # 1 % is not less than 1 %
    assert subspaces.nearly_equal(torch.tensor([1.0])) == []


def test_directions_of_nearly_equal_values_turn_into_one_another():
    """Why they are flagged: a change of 1 % of the matrix turns them, and not the others."""
    U, V = (torch.linalg.qr(randn(6, 6, seed=seed)).Q for seed in (0, 1))
    S = torch.tensor([4.0, 2.005, 2, 1, 0.5, 0.25], dtype=torch.float64)
    assert subspaces.nearly_equal(S) == [[2, 3]]
    change = 0.01 * 2 * (U[:, 1:2] @ V[2:3] + U[:, 2:3] @ V[1:2])
    after = torch.linalg.svd(U @ torch.diag(S) @ V + change).U
    cosines = (U * after).sum(0).abs()
    assert cosines[[1, 2]].max() < 0.8
    assert cosines[[0, 3, 4, 5]].min() > 0.999


@pytest.mark.parametrize(
    "normalization, left", [("LN", 7), ("LNPre", 7), ("RMS", 8), ("RMSPre", 8), (None, 8)]
)
def test_dimensions_left(normalization, left):
    from transformer_lens import HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=1, d_model=8, d_head=2, n_ctx=4, attn_only=True, normalization_type=normalization
    )
    assert subspaces.dimensions_left(cfg) == left
