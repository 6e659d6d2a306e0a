"""Part 2: heads add, a head is three steps or one tensor product, and its pattern needs no query or key."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.testing import assert_close

from circuits import heads

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 6)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(model, layer, head):
    """W_Q, W_K, W_V, W_O, b_Q, b_K, b_V of one head."""
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    return [model.get_parameter(f"blocks.{layer}.attn.{name}")[head] for name in names]


@pytest.fixture(params=range(4))
def head(request):
    return request.param


@pytest.fixture
def layer(either):
    return either.model.cfg.n_layers - 1


def test_a_wrong_shape_is_refused():
    """Torch itself would drop the third head."""
    with pytest.raises(TypeCheckError, match="W_O"):
        heads.summed(torch.ones(4, 3, 2), torch.ones(2, 2, 5))


# ---- the two matrices --------------------------------------------------------------------------------


def test_factored_is_the_product_kept_as_its_factors():
    left, right = torch.tensor([[0.0], [0], [1]]), torch.tensor([[1.0, 1, 0]])
    W = heads.factored(left, right)  # the article's W_OV: reads dimensions 1 and 2, writes 3
    assert W.AB.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert (W.A.data_ptr(), W.B.data_ptr()) == (left.data_ptr(), right.data_ptr())  # and not copied


def test_W_OV_and_W_QK(either, layer, head):
    W_Q, W_K, W_V, W_O, *_ = weights(either.model, layer, head)
    W_OV, W_QK = heads.W_OV(either.model, layer, head), heads.W_QK(either.model, layer, head)
    assert torch.equal(W_OV.A, W_V)
    assert torch.equal(W_OV.B, W_O)
    assert_close(W_OV.AB, torch.einsum("dh,he->de", W_V, W_O))
    assert_close(W_QK.AB, torch.einsum("dh,eh->de", W_Q, W_K))
    d_model, d_head = W_Q.shape
    for W in (W_OV, W_QK):
        assert W.A.shape == (d_model, d_head)
        assert W.B.shape == (d_head, d_model)
        S = torch.linalg.svdvals(W.AB)
        assert_close(W.S, S[:d_head])
        assert S[d_head - 1] > 1e-2
        assert S[d_head] < 1e-5


def test_W_OV_and_W_QK_are_those_of_transformer_lens(either, layer, head):
    assert_close(heads.W_OV(either.model, layer, head).AB, either.model.OV[layer, head].AB)
    assert_close(heads.W_QK(either.model, layer, head).AB, either.model.QK[layer, head].AB)


def test_W_QK_with_biases_by_block(either, layer, head):
    W_Q, W_K, _, _, b_Q, b_K, _ = weights(either.model, layer, head)
    W = heads.W_QK_with_biases(either.model, layer, head).AB
    assert W.shape == (len(W_Q) + 1, len(W_Q) + 1)
    assert_close(W[:-1, :-1], W_Q @ W_K.T)
    assert_close(W[-1, :-1], W_K @ b_Q)
    assert_close(W[:-1, -1], W_Q @ b_K)
    assert_close(W[-1, -1], b_Q @ b_K)


# ---- heads are independent and additive --------------------------------------------------------------


@pytest.mark.parametrize("layer_of_heads", [heads.concatenated, heads.summed])
def test_two_heads_by_hand(layer_of_heads):
    """The article's r¹ = (1, 2) and r² = (3, -1), with a W_O of ours: (1, 2, 4) + (1, 3, 1)."""
    z = torch.tensor([[[1.0, 2], [3, -1]]])
    W_O = torch.tensor([[[1.0, 0, 2], [0, 1, 1]], [[1, 1, 0], [2, 0, -1]]])
    assert layer_of_heads(z, W_O).tolist() == [[2, 5, 5]]


@given(seeds, sizes, sizes, sizes, sizes)
def test_concatenated_equals_summed(seed, pos, n_heads, d_head, d_model):
    z, W_O = randn(pos, n_heads, d_head, seed=seed), randn(n_heads, d_head, d_model, seed=seed + 1)
    at_once, each = heads.concatenated(z, W_O), heads.summed(z, W_O)
    assert each.shape == (pos, d_model)
    assert_close(at_once, each)
    assert_close(each, torch.einsum("phd,hdm->pm", z, W_O))


def test_heads_and_b_O_are_what_a_layer_adds(either, layer):
    W_O, b_O = either.model.W_O[layer], either.model.b_O[layer]
    z, added = either.cache["z", layer][0], either.cache["attn_out", layer][0]
    assert_close(heads.concatenated(z, W_O) + b_O, added)
    assert_close(heads.summed(z, W_O) + b_O, added)


# ---- three steps, and the tensor form ----------------------------------------------------------------


def test_three_steps_by_hand():
    """The article's head of one dimension: values (2, 1, 0), and token 3 receives 1.8 in dimension 3."""
    x = torch.tensor([[2.0, 0, 0], [1, 0, 5], [0, 0, 1]])
    A = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.85, 0.1, 0.05]])
    W_V, W_O = torch.tensor([[1.0], [1], [0]]), torch.tensor([[0.0, 0, 1]])
    r, h = heads.three_steps(x, A, W_V, torch.zeros(1), W_O)
    assert_close(r, torch.tensor([[2], [1.5], [1.8]]))
    assert_close(h, torch.tensor([[0, 0, 2], [0, 0, 1.5], [0, 0, 1.8]]))
    with_bias, _ = heads.three_steps(x, A, W_V, torch.ones(1), W_O)
    assert_close(with_bias, r + 1)  # the weights of a row sum to one


def test_three_steps_are_the_model_s(either, layer, head):
    _, _, W_V, W_O, _, _, b_V = weights(either.model, layer, head)
    cache = either.cache
    x, A = cache["normalized", layer, "ln1"][0], cache["pattern", layer][0, head]
    r, h = heads.three_steps(x, A, W_V, b_V, W_O)
    assert_close(r, cache["z", layer][0, :, head])
    stack = cache.stack_head_results()  # [head of any layer, batch, pos, d_model]
    assert_close(h, stack[layer * either.model.cfg.n_heads + head, 0])


@given(seeds, sizes, sizes, sizes)
def test_the_tensor_form_equals_the_three_steps_in_both_orders(seed, pos, d_model, d_head):
    x, A = randn(pos, d_model, seed=seed), randn(pos, pos, seed=seed + 1)
    W_V, W_O = randn(d_model, d_head, seed=seed + 2), randn(d_head, d_model, seed=seed + 3)
    W_OV = heads.factored(W_V, W_O)
    _, h = heads.three_steps(x, A, W_V, torch.zeros(d_head, dtype=x.dtype), W_O)
    assert_close((A @ x) @ W_OV.AB, h)
    assert_close(A @ (x @ W_OV.AB), h)
    assert_close(torch.kron(A, W_OV.AB.T.contiguous()) @ x.flatten(), h.flatten())


def test_the_tensor_product_by_hand():
    """The article's (A ⊗ W) x: token 2 takes half of each token, and W swaps a token's numbers."""
    A, swap = torch.tensor([[1, 0], [0.5, 0.5]]), torch.tensor([[0.0, 1], [1, 0]])
    x = torch.tensor([[1.0, 2], [3, 4]])
    _, h = heads.three_steps(x, A, swap, torch.zeros(2), torch.eye(2))
    assert h.flatten().tolist() == [2, 1, 3, 2]


# ---- the pattern in one step -------------------------------------------------------------------------

# The article's toy: the query reads dimension 1, the key dimension 2; the always-1 column reads nothing.
READS_1 = torch.tensor([[1.0], [0], [0]])
READS_2 = torch.tensor([[0.0], [1], [0]])
SOURCE_THEN_DESTINATION = torch.tensor([[0.0, 3], [2, 0]])


def test_the_pattern_by_hand():
    W_QK = heads.factored(READS_1, READS_2.T)
    assert W_QK.AB[:2, :2].tolist() == [[0, 1], [0, 0]]
    A, scores = heads.pattern_in_one_step(SOURCE_THEN_DESTINATION, W_QK, 1)
    assert scores.tolist() == [[0, 0], [6, 0]]
    e6 = torch.tensor(6.0).exp()
    assert_close(A, torch.tensor([[1, 0], [e6 / (1 + e6), 1 / (1 + e6)]]))


def test_scores_are_divided_by_the_root_of_d_head_and_grow_fourfold_with_x():
    W_QK = heads.factored(READS_1, READS_2.T)
    _, scores = heads.pattern_in_one_step(SOURCE_THEN_DESTINATION, W_QK, 4)
    assert scores.tolist() == [[0, 0], [3, 0]]
    _, scores = heads.pattern_in_one_step(2 * SOURCE_THEN_DESTINATION, W_QK, 4)
    assert scores.tolist() == [[0, 0], [12, 0]]


def test_scores_of_a_layer_with_a_divisor_of_its_own():
    W_QK = heads.factored(READS_1, READS_2.T)
    _, scores = heads.pattern_in_one_step(SOURCE_THEN_DESTINATION, W_QK, 4, divisor=1.0)
    assert scores.tolist() == [[0, 0], [6, 0]]


def test_a_token_of_a_layer_with_a_window_sees_itself_and_those_just_before():
    """All scores zero: each of four tokens spreads its weight evenly over what it sees."""
    nothing = heads.factored(torch.zeros(3, 1), torch.zeros(1, 3))
    halves, thirds = (
        torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
        torch.ones(4, 4).tril(),
    )
    for window, seen in ((1, torch.eye(4)), (2, halves), (3, thirds.triu(-2)), (4, thirds), (None, thirds)):
        A, _ = heads.pattern_in_one_step(torch.ones(4, 2), nothing, 1, window=window)
        assert_close(A, seen / seen.sum(1, keepdim=True))


def test_the_article_s_models_divide_by_the_root_and_see_everything(either, layer):
    assert heads.score_divisor(either.model, layer) == pytest.approx(5**0.5)
    assert heads.divides_by_root(either.model, layer)
    assert heads.attention_window(either.model, layer) is None


def test_the_always_one_column_holds_the_biases():
    """b_Q = 10 and b_K = 1: (0 + 10)(3 + 1), (0 + 10)(0 + 1); (2 + 10)(3 + 1), (2 + 10)(0 + 1)."""
    W_QK = heads.factored(
        READS_1 + torch.tensor([[0.0], [0], [10]]), (READS_2 + torch.tensor([[0.0], [0], [1]])).T
    )
    _, scores = heads.pattern_in_one_step(SOURCE_THEN_DESTINATION, W_QK, 1)
    assert scores.tolist() == [[40, 10], [48, 12]]


def test_the_pattern_is_the_model_s(either, layer, head):
    x = either.cache["normalized", layer, "ln1"][0]
    W_QK = heads.W_QK_with_biases(either.model, layer, head)
    A, scores = heads.pattern_in_one_step(x, W_QK, either.model.cfg.d_head)
    assert_close(A, either.cache["pattern", layer][0, head])
    past = torch.ones_like(A).tril().bool()
    assert_close(scores[past], either.cache["attn_scores", layer][0, head][past])
    assert scores.isfinite().all()
    assert (A[~past] == 0).all()
    assert_close(A.sum(-1), torch.ones(len(A)))


# ---- reparametrising ---------------------------------------------------------------------------------


def test_reparametrised_by_hand():
    """The article's toy with M = 2: its values (2, 1, 0) become (4, 2, 0), and W_O is halved."""
    x = torch.tensor([[2.0, 0, 0], [1, 0, 5], [0, 0, 1]])
    W_V, W_O = torch.tensor([[1.0], [1], [0]]), torch.tensor([[0.0, 0, 1]])
    new_V, new_O = heads.reparametrised(W_V, W_O, torch.tensor([[2.0]]))
    assert (x @ new_V).flatten().tolist() == [4, 2, 0]
    assert new_O.tolist() == [[0, 0, 0.5]]
    assert torch.equal(x @ new_V @ new_O, x @ W_V @ W_O)


def test_reparametrised_by_a_turn_and_a_stretch():
    """An M that is not its own transpose: the inverse of [[0, 1], [-2, 0]] is [[0, -1/2], [1, 0]]."""
    left, right = torch.tensor([[1.0, 10], [2, 20]]), torch.tensor([[1.0, 2], [3, 4]])
    new_left, new_right = heads.reparametrised(left, right, torch.tensor([[0.0, 1], [-2, 0]]))
    assert new_left.tolist() == [[-20, 1], [-40, 2]]
    assert new_right.tolist() == [[-1.5, -2], [1, 2]]


@given(seeds, sizes, sizes)
def test_reparametrised_keeps_the_product(seed, d_model, d_head):
    left, right = randn(d_model, d_head, seed=seed), randn(d_head, d_model, seed=seed + 1)
    M = randn(d_head, d_head, seed=seed + 2)
    M += 3 * d_head * torch.eye(d_head, dtype=M.dtype)  # far from singular
    new_left, new_right = heads.reparametrised(left, right, M)
    assert_close(new_left @ new_right, left @ right)
    assert (new_left - left).abs().min() > 0
    assert (new_right - right).abs().min() > 0


def test_reparametrising_a_head_keeps_its_scores_and_writes(either, layer, head):
    W_Q, W_K, W_V, W_O, b_Q, b_K, _ = (W.double() for W in weights(either.model, layer, head))
    x = either.cache["normalized", layer, "ln1"][0].double()
    M = randn(len(b_Q), len(b_Q), seed=0)
    new_V, new_O = heads.reparametrised(W_V, W_O, M)
    assert_close(x @ new_V @ new_O, x @ W_V @ W_O, atol=1e-12, rtol=1e-10)
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    left, right = torch.cat([W_Q, b_Q[None]]), torch.cat([W_K, b_K[None]]).T
    new_left, new_right = heads.reparametrised(left, right, M)
    scores = (x @ new_left) @ (new_right @ x.T) / len(b_Q) ** 0.5
    past = torch.ones_like(scores).tril().bool()
    assert_close(scores.float()[past], either.cache["attn_scores", layer][0, head][past])


def test_a_singular_M_is_refused():
    with pytest.raises(torch.linalg.LinAlgError):
        heads.reparametrised(torch.eye(2), torch.eye(2), torch.tensor([[1.0, 2], [2, 4]]))


# ---- where heads look in a text said twice -----------------------------------------------------------


def test_said_twice():
    tokens = heads.said_twice(29, 3, 4, 50, torch.Generator().manual_seed(0))
    assert tokens.shape == (50, 9)
    assert (tokens[:, 0] == 3).all()
    assert torch.equal(tokens[:, 1:5], tokens[:, 5:])
    assert tokens[:, 1:].unique().tolist() == list(range(29))
    assert len(tokens[:, 1:5].unique(dim=0)) == 50


def test_looks_back_by_hand():
    """Two rows of one head: the previous token gets 1, 0.5 and then 0 and 1, from position 1 on."""
    A = torch.tensor([[[[1.0, 0, 0], [1, 0, 0], [0.25, 0.5, 0.25]]], [[[1, 0, 0], [0, 1, 0], [0, 1, 0]]]])
    assert heads.looks_back(A, by=1, start=1).tolist() == [0.625]
    assert heads.looks_back(A, by=1, start=2).tolist() == [0.75]
    assert heads.looks_back(A, by=2, start=2).tolist() == [0.125]


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_looks_back_is_a_mean_over_rows_and_positions(seed, length):
    """Of the induction position: in the second turn, the token after this one's first standing."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.rand(2, 3, 2 * length + 1, 2 * length + 1, generator=generator, dtype=torch.float64)
    tokens = heads.said_twice(1000, 0, length, 2, generator)
    for head in range(3):
        weights = [
            A[row, head, i, i - length + 1] for row in range(2) for i in range(length + 1, 2 * length + 1)
        ]
        assert heads.looks_back(A, length - 1, length + 1)[head] == pytest.approx(
            sum(weights).item() / len(weights)
        )
    for i in range(length + 1, 2 * length + 1):
        assert torch.equal(tokens[:, i - length], tokens[:, i])
