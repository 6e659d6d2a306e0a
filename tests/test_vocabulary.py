"""From weights to tokens: the direct path, OV columns, QK rows, and who is its own top output."""

import copy
import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jaxtyping import TypeCheckError
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from circuits import Fault, vocabulary

seeds = st.integers(0, 2**32 - 1)

# The article's toy of four tokens and three dimensions: the, cat, dog, sat.
W_E = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]])
W_U = torch.tensor([[0.0, 2, 1, 0], [0, 0, 0, 2], [1, 0, 0, 0]])


def randn(*shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def test_a_wrong_shape_is_refused():
    """Torch itself would compare each row of the scores with the first."""
    with pytest.raises(TypeCheckError, match="scores"):
        vocabulary.place(torch.zeros(2, 3), 0)


# ---- the direct path, and a token's place ------------------------------------------------------------


def test_the_direct_path_by_hand():
    """The article's table W_U W_E: its columns, by current token."""
    table = [vocabulary.direct_path(W_E, W_U, token).tolist() for token in range(4)]
    assert table == [[0, 2, 1, 0], [0, 0, 0, 2], [1, 0, 0, 2], [1, 0, 0, 0]]
    after_the = vocabulary.direct_path(W_E, W_U, 0).softmax(-1)
    assert_close(after_the, torch.tensor([0.083, 0.610, 0.225, 0.083]), atol=5e-4, rtol=0)


def test_the_direct_path_is_what_a_model_without_heads_adds(one_layer):
    """The logits of the token's own embedding, but for b_U and the size that layer norm divides by."""
    model, tokens = one_layer.model, one_layer.tokens
    embedded = one_layer.cache["hook_embed"][0]
    for pos, token in enumerate(tokens.tolist()):
        assert_close(
            vocabulary.direct_path(model.W_E, model.W_U, token), model.unembed(embedded)[pos] - model.b_U
        )


def test_place_by_hand():
    scores = torch.tensor([0.5, 2.0, -1.0, 2.0, -torch.inf])
    assert [vocabulary.place(scores, index) for index in range(5)] == [3, 1, 4, 1, 5]
    assert type(vocabulary.place(scores, 0)) is int


@given(seeds, st.integers(1, 20))
def test_place_counts_from_the_highest(seed, n):
    scores = randn(n, seed=seed)
    order = scores.argsort(descending=True).tolist()
    assert [vocabulary.place(scores, index) for index in order] == list(range(1, n + 1))


# ---- embeddings as a head sees them ------------------------------------------------------------------


def test_normalised_by_hand():
    assert vocabulary.normalised(torch.tensor([[1.0, 2, 3], [10, 30, 50]])).tolist() == [
        [-1, 0, 1],
        [-1, 0, 1],
    ]


def test_normalised_of_a_constant_embedding_is_zero():
    """A padding token's row, which layer norm cannot scale: not 0 / 0."""
    assert vocabulary.normalised(torch.tensor([[0.0, 0, 0], [7, 7, 7]])).tolist() == [[0, 0, 0]] * 2


@given(seeds, st.integers(2, 9))
def test_normalised_forgets_size_and_mean(seed, d_model):
    W = randn(3, d_model, seed=seed, dtype=torch.float64)
    before = W.clone()
    x = vocabulary.normalised(W)
    assert torch.equal(W, before)
    assert_close(x.mean(1), torch.zeros(3, dtype=W.dtype))
    assert_close(x.square().sum(1), torch.full((3,), d_model - 1.0, dtype=W.dtype))
    assert_close(vocabulary.normalised(5 * W + 7), x)
    assert_close(vocabulary.normalised(-W), -x)


def test_normalised_is_layer_norm_but_for_its_biased_deviation(one_layer):
    model, W = one_layer.model, one_layer.model.W_E
    d_model = model.cfg.d_model
    theirs = model.blocks[0].ln1(W[None])[0]
    assert_close(vocabulary.normalised(W) * (d_model / (d_model - 1)) ** 0.5, theirs, atol=1e-4, rtol=1e-4)


def test_ordinary_tokens_are_the_article_s_where_there_are_as_many():
    assert vocabulary.ordinary(3000).tolist() == list(range(1000, 3000))
    assert vocabulary.ordinary(2999).tolist() == list(range(2999))


# ---- the OV and QK circuits --------------------------------------------------------------------------


def weights(model, layer, head):
    return [model.get_parameter(f"blocks.{layer}.attn.{name}")[head] for name in ("W_Q", "W_K", "W_V", "W_O")]


@pytest.mark.parametrize("head", range(4))
def test_ov_columns_and_qk_rows_are_those_of_the_full_tables(either, head):
    model = either.model
    W_Q, W_K, W_V, W_O = weights(model, model.cfg.n_layers - 1, head)
    x = vocabulary.normalised(model.W_E)
    OV = (model.W_U.T @ (W_O.T @ W_V.T)) @ x.T  # the paper's W_U W_OV W_E: a column a source token
    QK = x @ (W_Q @ W_K.T) @ x.T / math.sqrt(model.cfg.d_head)  # W_Eᵀ W_QK W_E: a row a destination
    for token in range(model.cfg.d_vocab):
        assert_close(vocabulary.ov_column(x[token], W_V, W_O, model.W_U), OV[:, token], atol=2e-5, rtol=1e-5)
        assert_close(vocabulary.qk_row(x[token], W_Q, x @ W_K), QK[token], atol=2e-5, rtol=1e-5)


def test_a_qk_row_by_hand():
    """Three keys that score 8, -4 and 0, over the root of four dimensions or over a layer's own divisor."""
    x, W_Q = torch.tensor([2.0]), torch.tensor([[1.0, 0, 0, 0]])
    keys = torch.tensor([[4.0, 1, 1, 1], [-2, 1, 1, 1], [0, 1, 1, 1]])
    assert vocabulary.qk_row(x, W_Q, keys).tolist() == [4, -2, 0]
    assert vocabulary.qk_row(x, W_Q, keys, 1.0).tolist() == [8, -4, 0]


@pytest.mark.parametrize("head", range(4))
def test_a_head_adds_its_ov_columns_weighted_by_its_pattern(one_layer, head):
    model, cache = one_layer.model, one_layer.cache
    _, _, W_V, W_O = weights(model, 0, head)
    A = cache["pattern", 0][0, head]
    x = cache["normalized", 0, "ln1"][0]
    columns = torch.stack([vocabulary.ov_column(source, W_V, W_O, model.W_U) for source in x])
    bias = model.b_V[0, head] @ W_O @ model.W_U  # whatever the pattern, since a row of it sums to one
    written = cache["z", 0][0, :, head] @ W_O
    assert_close(A @ columns + bias, written @ model.W_U, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("head", range(4))
def test_a_model_without_positions_and_biases_scores_by_its_qk_rows(one_layer, head):
    model = copy.deepcopy(one_layer.model)
    for weight in (model.pos_embed.W_pos, model.blocks[0].attn.b_Q, model.blocks[0].attn.b_K):
        weight.data.zero_()
    _, cache = model.run_with_cache(one_layer.tokens[None])
    theirs = cache["attn_scores", 0][0, head]
    W_Q, W_K, _, _ = weights(model, 0, head)
    x = model.blocks[0].ln1(model.W_E[None])[0]
    rows = torch.stack([vocabulary.qk_row(x[token], W_Q, x @ W_K) for token in one_layer.tokens])
    past = torch.ones_like(theirs).tril().bool()
    assert_close(rows[:, one_layer.tokens][past], theirs[past], atol=1e-5, rtol=1e-5)


# ---- is a token its own top output? ------------------------------------------------------------------


def plainly(rows, columns, tokens):
    """`own_top` by its definition, one pair at a time: each dot product exact, but for its last rounding."""
    answer = []
    for row, token in zip(rows.double().tolist(), tokens.tolist(), strict=True):
        scores = [
            math.fsum(a * b for a, b in zip(row, column, strict=True))
            for column in columns.double().T.tolist()
        ]
        answer.append(scores.index(max(scores)) == token)
    return answer


@st.composite
def with_ties(draw):
    """Whole numbers, so that products and sums are exact and many scores equal; some columns twice."""
    n, k, d_vocab = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    small = dict(elements=st.integers(-2, 2), fill=st.nothing())  # each number on its own
    rows = draw(hnp.arrays("int64", (n, k), **small))
    columns = draw(hnp.arrays("int64", (k, d_vocab), **small))
    tokens = draw(hnp.arrays("int64", n, elements=st.integers(0, d_vocab - 1)))
    copied = draw(hnp.arrays("int64", d_vocab, elements=st.integers(0, d_vocab - 1)))
    columns = columns[:, copied] if draw(st.booleans()) else columns
    return torch.from_numpy(rows).to(dtype), torch.from_numpy(columns).to(dtype), torch.from_numpy(tokens)


@given(with_ties(), st.integers(1, 12))
def test_own_top_is_the_argmax_ties_and_all(case, block):
    rows, columns, tokens = case
    before = [tensor.clone() for tensor in case]
    found = vocabulary.own_top(rows, columns, tokens, block)
    assert found.tolist() == plainly(rows, columns, tokens)
    assert torch.equal(found, (rows @ columns).argmax(1) == tokens)
    assert all(torch.equal(tensor, was) for tensor, was in zip(case, before, strict=True))


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 6, 7, 100])
def test_own_top_by_hand(block):
    """One row for each token of six, by the only dimension: the scores are 1 3 3 0 3 2 times it."""
    columns = torch.tensor([[1.0, 3, 3, 0, 3, 2]])
    tokens = torch.arange(6)

    def top(row):
        return (
            vocabulary.own_top(torch.full((6, 1), row), columns, tokens, block).nonzero().flatten().tolist()
        )

    assert top(1.0) == [1]  # tied with 2 and 4, which come later
    assert top(-1.0) == [3]
    assert top(0.0) == [0]  # tied with every other


@pytest.mark.parametrize("block", range(1, 9))
def test_own_top_looks_at_every_output(block):
    """Each of seven outputs the highest in turn, and each token the second, with no tie to fall back on."""
    best, tokens = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
    rows = 2 * torch.eye(7)[best] + torch.eye(7)[tokens]
    assert torch.equal(vocabulary.own_top(rows, torch.eye(7), tokens, block), best == tokens)


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_own_top_of_a_token_asked_for_twice(block):
    rows, columns = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]]), torch.tensor([[2.0, 2, 0], [0, 0, 1]])
    for token, right in enumerate(([True, False, True, True], [False] * 4, [False, True, False, False])):
        assert vocabulary.own_top(rows, columns, torch.full((4,), token), block).tolist() == right


def test_own_top_in_a_vocabulary_of_one_or_of_the_lowest_scores():
    """Where the best of the others is -inf, or everything is far below zero, the token is not lost."""
    for row in (-1e30, -1.0, 0.0, 1.0):
        assert vocabulary.own_top(
            torch.tensor([[row]]), torch.tensor([[1.0]]), torch.tensor([0])
        ).tolist() == [True]
    columns = torch.tensor([[-3e38, -2e38, -1e38, -2e38]])
    found = vocabulary.own_top(torch.ones(4, 1), columns, torch.arange(4), 1)
    assert found.tolist() == [False, False, True, False]


def test_own_top_of_no_tokens():
    found = vocabulary.own_top(torch.zeros(0, 3), torch.ones(3, 5), torch.zeros(0, dtype=torch.int64))
    assert found.shape == (0,)
    assert found.dtype == torch.bool


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_own_top_of_equal_columns_goes_to_the_first(layout, size):
    """Columns that are equal, not nearly: their order in memory must not decide (GPT-2's W_U is W_E.T)."""
    for seed in range(60):
        k = (3, 16, 64)[seed % 3]
        directions = size * randn(k, 4, seed=seed)
        directions[:, 3] /= 1e6  # the shortest says nothing of how the others round
        columns = directions[:, torch.randint(4, (7,), generator=torch.Generator().manual_seed(seed))]
        if layout == "columns":
            columns = columns.T.contiguous().T
        rows, tokens = columns.T.clone(), torch.arange(7)
        assert vocabulary.own_top(rows, columns, tokens, 3).tolist() == plainly(rows, columns, tokens)


def nearly_tied(seed, k, d_vocab, size, dtype):
    """Two directions; each column is one of them, half with one number moved by a unit in its last place."""
    generator = torch.Generator().manual_seed(seed)
    directions = randn(k, 2, seed=seed + 1, dtype=dtype) * size
    columns = directions[:, torch.randint(2, (d_vocab,), generator=generator)]
    up = torch.nextafter(columns, torch.full_like(columns, torch.inf))
    at, moved = (
        torch.randint(k, (d_vocab,), generator=generator),
        torch.rand(d_vocab, generator=generator) < 0.5,
    )
    columns = torch.where(torch.nn.functional.one_hot(at, k).T.bool() & moved, up, columns)
    rows = randn(20, k, seed=seed + 2, dtype=dtype) * size
    return rows, columns, torch.randint(d_vocab, (20,), generator=generator)


near_ties = given(
    seeds, st.integers(1, 40), st.integers(1, 30), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(1, 33)
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@near_ties
def test_own_top_of_near_ties_is_right_but_for_rounding(dtype, seed, k, d_vocab, size, block):
    """True only where no other output leads by more than rounding, False only where the token does not."""
    rows, columns, tokens = nearly_tied(seed, k, d_vocab, size, dtype)
    rounding = k * torch.finfo(dtype).eps * rows.norm(dim=1) * columns.norm(dim=0).max()
    scores = rows.double() @ columns.double()
    own = scores[torch.arange(20), tokens]
    scores[torch.arange(20), tokens] = -torch.inf
    lead = own - scores.amax(1)
    found = vocabulary.own_top(rows, columns, tokens, block)
    assert (lead[found] >= -rounding[found]).all()
    assert (lead[~found] <= rounding[~found]).all()


@near_ties
def test_own_top_of_near_ties_is_exact(seed, k, d_vocab, size, block):
    """In float32, where a product of two numbers is exact in float64: no rounding decides."""
    rows, columns, tokens = nearly_tied(seed, k, d_vocab, size, torch.float32)
    assert vocabulary.own_top(rows, columns, tokens, block).tolist() == plainly(rows, columns, tokens)


# ---- where it stands, down to a place ----------------------------------------------------------------


def ranked(rows, columns, tokens, most):
    """`own_place` by its definition: a stable sort of the whole row in float64, the highest first."""
    orders = (rows.double() @ columns.double()).sort(dim=1, descending=True, stable=True).indices.tolist()
    places = [order.index(token) + 1 for order, token in zip(orders, tokens.tolist(), strict=True)]
    return [min(place, most + 1) for place in places]


@given(with_ties(), st.integers(1, 6), st.sampled_from([None, 1, 2, 5, 12]))
def test_own_place_is_that_of_a_stable_sort(case, most, block):
    rows, columns, tokens = case
    places = vocabulary.own_place(rows, columns, tokens, most, block)
    assert places.tolist() == ranked(rows, columns, tokens, most)
    for top in range(1, most + 1):
        assert vocabulary.own_top(rows, columns, tokens, block, top).tolist() == (places <= top).tolist()


@given(seeds, st.integers(1, 40), st.integers(1, 30), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(1, 6))
def test_own_place_among_near_ties(seed, k, d_vocab, size, most):
    """In float32, where no product of two numbers is rounded in float64; equal columns are equal there."""
    rows, columns, tokens = nearly_tied(seed, k, d_vocab, size, torch.float32)
    places = []
    for row, token in zip(rows.double().tolist(), tokens.tolist(), strict=True):
        scores = [math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in columns.T.tolist()]
        places.append(min(sorted(range(d_vocab), key=lambda j: -scores[j]).index(token), most) + 1)
    assert vocabulary.own_place(rows, columns, tokens, most).tolist() == places


@pytest.mark.parametrize("block", [None, 1, 3, 100])
def test_own_place_by_hand(block):
    columns = torch.tensor([[1.0, 3, 3, 0, 3, 2]])
    places = [
        vocabulary.own_place(torch.ones(6, 1), columns, torch.arange(6), most, block) for most in (1, 3, 6)
    ]
    assert [p.tolist() for p in places] == [[2, 1, 2, 2, 2, 2], [4, 1, 2, 4, 3, 4], [5, 1, 2, 6, 3, 4]]


@given(with_ties(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6))
def test_own_place_whatever_the_sizes_of_its_blocks(case, most, height, width, tile):
    rows, columns, tokens = case
    with patch.multiple(vocabulary, TOKENS=height, OUTPUTS=width, TILE=tile):
        assert vocabulary.own_place(*case, most).tolist() == ranked(rows, columns, tokens, most)


def test_own_place_keeps_its_blocks_small(monkeypatch):
    """Narrow at first, when most tokens drop; and never more scores than a block may hold."""
    for name, size in (("TOKENS", 8), ("OUTPUTS", 16), ("TILE", 4)):
        monkeypatch.setattr(vocabulary, name, size)
    columns = torch.eye(60)
    columns[0, 1] = 9  # beats every row that has the first dimension
    rows = torch.eye(60)[:20]
    rows[5:, 0] = 3
    with Watch() as watch:
        places = vocabulary.own_place(rows, columns, torch.arange(20), 1)
    assert places.tolist() == ranked(rows, columns, torch.arange(20), 1)
    assert watch.products == [(8, 4), (8, 4), (4, 4), (4, 8), (4, 16), (4, 16), (4, 16)]


def test_own_place_looks_only_into_tiles_that_hold_a_rival(monkeypatch):
    """One of 16 tiles has one: the comparison that follows is of that tile's scores alone."""
    monkeypatch.setattr(vocabulary, "TILE", 4)
    rows, columns = torch.eye(64)[:8], torch.eye(64)
    rows[:, 41] = 2
    with Watch() as watch:
        assert vocabulary.own_place(rows, columns, torch.arange(8), 3, 64).tolist() == [2] * 8
    assert (8, 4) in watch.compared
    assert (8, 64) not in watch.compared


def test_own_place_takes_no_row_again_where_all_scores_are_apart():
    rows = torch.eye(6) + 2 * torch.eye(6)[:1]
    with Watch() as watch:
        assert vocabulary.own_place(rows, torch.eye(6), torch.arange(6), 2, 3).tolist() == [1, 2, 2, 2, 2, 2]
    assert watch.products == [(6, 3), (6, 3)]


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_own_place_of_what_is_no_number_is_none(odd):
    """NaN compares with nothing: an output, or a token, that has one must not look unbeaten."""
    rows = torch.eye(3)
    rows[1, 1] = odd
    assert vocabulary.own_place(rows, torch.eye(3), torch.arange(3), 2).tolist() == [1, 3, 1]
    assert vocabulary.own_place(torch.eye(3), rows, torch.arange(3), 2).tolist() == [3, 3, 3]


# ---- eigenvalues of a circuit ------------------------------------------------------------------------


def test_eigenvalue_copying_by_hand():
    """Eigenvalues 3 and -1: (3 - 1) / (3 + 1); a quarter turn has ±i, of real part 0."""
    rows = torch.tensor([[1.0, 0], [0, 1], [0, 0]])
    assert vocabulary.eigenvalue_copying(rows, torch.tensor([[3.0, 0, 5], [0, -1, 7]])) == pytest.approx(0.5)
    assert vocabulary.eigenvalue_copying(rows, torch.tensor([[0.0, 1, 5], [-1, 0, 7]])) == pytest.approx(0)
    assert vocabulary.eigenvalue_copying(rows, rows.T) == 1
    assert vocabulary.eigenvalue_copying(rows, -rows.T) == -1
    assert vocabulary.eigenvalue_copying(rows, 0 * rows.T) == 0


def test_eigenvalue_copying_is_that_of_the_full_circuit_and_of_a_sum_of_two(one_layer):
    """Eigenvalues of the whole d_vocab x d_vocab table; two heads' factors side by side are their sum's."""
    model, x = one_layer.model, vocabulary.normalised(one_layer.model.W_E)
    OV, QK = [], []
    for head in (1, 3):
        W_Q, W_K, W_V, W_O = weights(model, 0, head)
        OV.append((x @ W_V, W_O @ model.W_U))
        QK.append((x @ W_Q, (x @ W_K).T))
    for circuits in (OV, QK):
        tables = [rows.double() @ columns.double() for rows, columns in circuits]
        rows, columns = (torch.cat(factors, 1 - i) for i, factors in enumerate(zip(*circuits, strict=True)))
        for table, factors in [*zip(tables, circuits, strict=True), (sum(tables), (rows, columns))]:
            eigenvalues = torch.linalg.eigvals(table)
            whole = (eigenvalues.real.sum() / eigenvalues.abs().sum()).item()
            assert vocabulary.eigenvalue_copying(*factors) == pytest.approx(whole, abs=1e-5)
            assert -1 < whole < 1


def shares_memory(result, arg):
    """Whether `result` is a view of `arg`, or `arg` itself."""
    return (
        isinstance(arg, torch.Tensor)
        and result.untyped_storage().data_ptr() == arg.untyped_storage().data_ptr()
    )


class Watch(TorchDispatchMode):
    """Notes, of everything computed, the largest result and the shapes of products and comparisons."""

    def __init__(self):
        super().__init__()
        self.largest, self.products, self.compared = 0, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if isinstance(result, torch.Tensor) and not any(shares_memory(result, arg) for arg in args):
            self.largest = max(self.largest, result.numel())
        if name == "mm":
            self.products.append(tuple(result.shape))
        if name == "gt":
            self.compared.append(tuple(result.shape))
        return result


def test_own_top_holds_a_block_at_a_time_and_drops_tokens_early():
    """30 clear cases of a vocabulary of 400: 20 lead it, 10 are beaten in the first block already."""
    columns = torch.eye(400)
    columns[0, 5] = 3
    tokens = torch.arange(6, 36)
    rows = torch.eye(400)[tokens]
    rows[20:, 0] = 1
    rows, columns = rows[:, :40].contiguous(), columns[:40].contiguous()
    with Watch() as watch:
        found = vocabulary.own_top(rows, columns, tokens, 50)
    assert found.tolist() == [True] * 20 + [False] * 10
    assert watch.largest <= max(30 * 50, 30 * 40, 400)
    assert watch.products == [(30, 50)] + [(20, 50)] * 7


def test_own_top_needs_a_whole_row_only_where_rounding_decides():
    columns = torch.eye(10)[:, [0, 1, 1, 3, 4, 5, 6, 7, 8, 9]].contiguous()
    with Watch() as watch:
        found = vocabulary.own_top(torch.eye(10), columns, torch.arange(10), 1)
    assert found.tolist() == [True, True, False, True, True, True, True, True, True, True]
    assert watch.products[-1] == (2, 10)  # tokens 1 and 2, whose columns are equal
    assert {width for _, width in watch.products[:-1]} == {1}


def test_own_top_takes_parameters_as_they_are():
    """Weights that ask for gradients, and ids of 32 bits."""
    columns = torch.nn.Parameter(torch.eye(3))
    found = vocabulary.own_top(columns * 1, columns, torch.tensor([0, 2, 2], dtype=torch.int32))
    assert found.tolist() == [True, False, True]


def test_own_top_share_by_hand():
    """Of the toy's direct path, no token leads to itself; of the identity, every one of three does."""
    assert vocabulary.own_top_share(W_E, W_U, torch.arange(4)) == 0
    assert vocabulary.own_top_share(torch.eye(3), torch.eye(3), torch.arange(3)) == 1
    assert vocabulary.own_top_share(torch.eye(3), torch.eye(3), torch.tensor([0, 2, 0])) == pytest.approx(
        1 / 3
    )


def test_own_top_share_of_a_model_s_heads(either):
    """In factors as in Part 2, section 7, against the full table of each head."""
    model, x = either.model, vocabulary.normalised(either.model.W_E)
    tokens = torch.arange(3, 29)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            _, _, W_V, W_O = weights(model, layer, head)
            share = vocabulary.own_top_share(x[tokens] @ W_V, W_O @ model.W_U, tokens)
            table = x.double() @ W_V.double() @ W_O.double() @ model.W_U.double()
            assert share == pytest.approx((table.argmax(1) == torch.arange(29))[3:].double().mean().item())


# ---- tokens and their text ---------------------------------------------------------------------------


def test_reader_gives_the_text_of_an_id(mini):
    text = vocabulary.reader(mini)
    tea = mini.tokenizer.convert_tokens_to_ids("Ġtea")
    assert text(tea) == " tea"
    assert text(torch.tensor(tea)) == " tea"
    assert text(mini.tokenizer.bos_token_id) == "<|BOS|>"
    assert text(mini.tokenizer.convert_tokens_to_ids("Ġ.")) == " ."  # its space is kept


def test_reader_tells_pieces_of_a_character_by_their_ids(mini):
    """Both would read "\ufffd"."""
    text = vocabulary.reader(mini)
    pieces = mini.to_tokens("猫", prepend_bos=False)[0].tolist()
    assert len(pieces) == 3
    assert [text(piece) for piece in pieces] == [f"\ufffd#{piece}" for piece in pieces]


def test_no_two_tokens_read_the_same(mini):
    text = vocabulary.reader(mini)
    assert len({text(token) for token in range(mini.cfg.d_vocab)}) == mini.cfg.d_vocab


def test_single_token_is_its_id(mini):
    assert vocabulary.single_token(mini, " tea") == mini.tokenizer.convert_tokens_to_ids("Ġtea")
    assert type(vocabulary.single_token(mini, " tea")) is int


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("Durs", "'Durs' is 2 tokens for mini-2l: ['D', 'urs']"),
        ("", "'' is 0 tokens for mini-2l: []"),
    ],
)
def test_single_token_names_the_pieces_of_any_other_word(mini, word, message):
    with pytest.raises(Fault) as raised:
        vocabulary.single_token(mini, word)
    assert str(raised.value) == message


def test_single_token_shows_pieces_of_a_character_by_their_ids(mini):
    pieces = mini.to_tokens("猫", prepend_bos=False)[0].tolist()
    with pytest.raises(Fault, match="3 tokens") as raised:
        vocabulary.single_token(mini, "猫")
    for piece in pieces:
        assert f"\ufffd#{piece}" in str(raised.value)
