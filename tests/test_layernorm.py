"""Folding layer norm: the steps by hand, as laws for any weights, and against TransformerLens' own."""

import pytest
import torch
from hub import attention_only_state
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from circuits.layernorm import centred, fold, fold_reader

BUFFERS = ("mask", "IGNORE")


def weights(n_layers: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random parameters, every bias and norm non-zero; no two sizes are equal."""
    state = attention_only_state(n_layers, 16, 3, 5, 41, 11, seed)
    return {name: tensor for name, tensor in state.items() if not name.endswith(BUFFERS)}


def theirs(state: dict[str, torch.Tensor], n_layers: int) -> dict[str, torch.Tensor]:
    """TransformerLens' own processing."""
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.weight_processing import ProcessWeights

    sizes = {"d_model": 16, "n_heads": 3, "d_head": 5, "d_vocab": 41, "n_ctx": 11, "n_layers": n_layers}
    cfg = HookedTransformerConfig(**sizes, attn_only=True, normalization_type="LN")
    return ProcessWeights.process_weights({name: tensor.clone() for name, tensor in state.items()}, cfg)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal within 1e-6 of the tensor's size."""
    assert ours.dtype == torch.float32 and ours.shape == theirs.shape
    assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3])
def test_every_parameter_is_as_transformer_lens_folds_it(n_layers):
    state = weights(n_layers)
    ours, expected = fold(state), theirs(state, n_layers)
    norms = {name for name in state if ".ln1." in name or name.startswith("ln_final.")}
    assert ours.keys() == expected.keys() - norms
    for name, tensor in ours.items():
        assert_same(tensor, expected[name])
        assert name.endswith("b_V") or not torch.allclose(tensor, state[name]), f"{name} was not folded"


def test_the_unfolded_weights_stay_as_they_were():
    state = weights(2)
    before = {name: tensor.clone() for name, tensor in state.items()}
    folded = fold(state)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    memory = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    assert memory.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in folded.values())


def test_the_ends_of_a_model_fold_alone():
    state = weights(2)
    ends = {
        name: state[name] for name in ("embed.W_E", "ln_final.w", "ln_final.b", "unembed.W_U", "unembed.b_U")
    }
    folded = fold(ends)
    assert set(folded) == {"embed.W_E", "unembed.W_U", "unembed.b_U"}
    assert all(torch.equal(tensor, fold(state)[name]) for name, tensor in folded.items())


def test_a_tied_unembedding_that_is_a_view_folds_and_leaves_the_embedding():
    state = weights(0)
    state["unembed.W_U"] = state["embed.W_E"].T
    expected = theirs(state | {"unembed.W_U": state["unembed.W_U"].contiguous()}, 0)
    assert_same(fold(state)["unembed.W_U"], expected["unembed.W_U"])
    assert_same(fold(state)["embed.W_E"], expected["embed.W_E"])


def test_a_missing_parameter_is_named():
    state = weights(1)
    del state["blocks.0.attn.b_K"]
    with pytest.raises(KeyError, match=r"blocks\.0\.attn\.b_K"):
        fold(state)


def test_a_reader_by_hand():
    # Two dimensions, one output: rows 1 and 3 scaled by 2 and 1 are 2 and 3, less their mean -1/2 and 1/2.
    # The norm's bias (1, 10) reads 1 * 1 + 10 * 3 = 31 through the unscaled rows, on top of the bias 5.
    W, b = torch.tensor([[1.0], [3.0]]), torch.tensor([5.0])
    folded = fold_reader(W, b, torch.tensor([2.0, 1.0]), torch.tensor([1.0, 10.0]))
    assert folded[0].tolist() == [[-0.5], [0.5]]
    assert folded[1].tolist() == [36.0]


def test_the_value_bias_moves_into_the_output_bias():
    # Only head 1 has a value bias, of 3: whatever it attends to, it writes 3 times its first row, (1, 0, -1).
    state = {name: torch.zeros_like(tensor) for name, tensor in weights(1).items()}
    state["blocks.0.attn.b_V"][1, 0] = 3
    state["blocks.0.attn.W_O"][1, 0, :3] = torch.tensor([1.0, 0.0, -1.0])
    folded = fold(state)
    assert folded["blocks.0.attn.b_O"].tolist() == [3.0, 0.0, -3.0] + [0.0] * 13
    assert not folded["blocks.0.attn.b_V"].any()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), d_model=st.integers(2, 9), out=st.integers(1, 5))
def test_a_folded_reader_reads_what_layer_norm_and_the_reader_read(seed, d_model, out):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    W, b, ln_w, ln_b, x = (
        normal(3, d_model, out),
        normal(3, out),
        normal(d_model),
        normal(d_model),
        normal(d_model),
    )
    folded_W, folded_b = fold_reader(W, b, ln_w, ln_b)
    direction = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    expected = (direction * ln_w + ln_b) @ W + b
    torch.testing.assert_close(direction @ folded_W + folded_b, expected, rtol=0, atol=1e-9)
    assert folded_W.sum(-2).abs().max() < 1e-12 * d_model  # it does not read the stream's mean


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), d_model=st.integers(1, 9))
def test_a_centred_writer_writes_nothing_along_all_ones(seed, d_model):
    W = torch.randn(2, 4, d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert centred(W).sum(-1).abs().max() < 1e-14 * d_model
    torch.testing.assert_close(centred(W), W - W.mean(-1, keepdim=True), rtol=0, atol=1e-14)


def test_a_folded_model_says_the_same_with_every_logit_moved_by_one_number():
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    state = weights(2)
    sizes = {"d_model": 16, "n_heads": 3, "d_head": 5, "d_vocab": 41, "n_ctx": 11, "n_layers": 2}
    logits = []
    for norm, parameters in ("LN", state), ("LNPre", fold(state)):
        cfg = HookedTransformerConfig(**sizes, attn_only=True, normalization_type=norm, device="cpu")
        model = HookedTransformer(cfg)
        assert not model.load_state_dict(parameters, strict=False).unexpected_keys
        logits.append(model(torch.arange(10)[None]).detach())
    unfolded, folded = logits
    torch.testing.assert_close(folded.log_softmax(-1), unfolded.log_softmax(-1), rtol=0, atol=1e-5)
    moved = unfolded - folded
    assert moved.std(-1).max() < 1e-5 and moved.abs().max() > 0.01


def test_the_callers_settings_change_nothing():
    state = weights(1)
    expected = fold(state)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            again = fold(state)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


def test_a_wrong_shape_is_refused():
    W, b = torch.zeros(4, 3), torch.zeros(3)
    with pytest.raises(TypeCheckError):
        fold_reader(W, b, torch.zeros(5), torch.zeros(4))
