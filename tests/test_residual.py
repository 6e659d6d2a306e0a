"""Part 1: the stream is a sum, a logit is a sum of shares, and no direction of the stream is special."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.testing import assert_close

from circuits import residual

POSITIONS = [0, 3, -1]
seeds = st.integers(0, 2**32 - 1)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_dict(written):
    return {str(i): x for i, x in enumerate(written)}


def test_a_wrong_shape_is_refused():
    """Torch itself would broadcast a scale for every dimension."""
    right = {"x": torch.ones(3)}, torch.tensor(1.0), torch.ones(3, 4), torch.ones(4)
    residual.logit_shares(*right, 0)
    with pytest.raises(TypeCheckError, match="scale"):
        residual.logit_shares(right[0], torch.ones(3), *right[2:], 0)


# ---- pieces ------------------------------------------------------------------------------------------


def test_pieces_name_every_writer_in_order(one_layer, two_layers):
    first = ["embed", "pos_embed", "0.0", "0.1", "0.2", "0.3", "b_O.0"]
    assert list(residual.pieces(one_layer.model, one_layer.cache, 0)) == first
    both = [*first, "1.0", "1.1", "1.2", "1.3", "b_O.1"]
    assert list(residual.pieces(two_layers.model, two_layers.cache, 0)) == both


@pytest.mark.parametrize("pos", POSITIONS)
def test_pieces_sum_to_the_stream_after_each_layer(either, pos):
    total, layer = 0, 0
    for name, x in residual.pieces(either.model, either.cache, pos).items():
        total = total + x
        if name == f"b_O.{layer}":
            assert_close(total, either.cache[f"blocks.{layer}.hook_resid_post"][0, pos])
            layer += 1
    assert layer == either.model.cfg.n_layers


@pytest.mark.parametrize("pos", POSITIONS)
def test_pieces_are_those_of_transformer_lens(either, pos):
    stack, labels = either.cache.get_full_resid_decomposition(
        pos_slice=pos, expand_neurons=False, return_labels=True
    )
    theirs = {label: x[0] for label, x in zip(labels, stack, strict=True)}
    ours = residual.pieces(either.model, either.cache, pos)
    assert_close(ours["embed"], theirs["embed"])
    assert_close(ours["pos_embed"], theirs["pos_embed"])
    for layer, head in residual.heads(either.model):
        assert_close(ours[f"{layer}.{head}"], theirs[f"L{layer}H{head}"])
    biases = sum(x for name, x in ours.items() if name.startswith("b_O"))
    assert_close(biases, theirs["bias"])


@pytest.mark.parametrize("head", range(4))
def test_without_a_head_the_stream_lacks_its_piece(either, head):
    layer, pos = either.model.cfg.n_layers - 1, 3

    def silence(z, hook):
        z[:, :, head] = 0
        return z

    streams = []
    hooks = [
        (f"blocks.{layer}.attn.hook_z", silence),
        (f"blocks.{layer}.hook_resid_post", lambda x, hook: streams.append(x[0, pos])),
    ]
    either.model.run_with_hooks(either.tokens[None], fwd_hooks=hooks)
    lost = either.cache["resid_post", layer][0, pos] - streams[0]
    assert_close(lost, residual.pieces(either.model, either.cache, pos)[f"{layer}.{head}"])


def test_heads_are_listed_layer_by_layer(one_layer, two_layers):
    assert residual.heads(one_layer.model) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    second = [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert residual.heads(two_layers.model) == [(0, 0), (0, 1), (0, 2), (0, 3), *second]


# ---- logit shares ------------------------------------------------------------------------------------

# The article's toy of four tokens and three dimensions: the, cat, dog, sat.
W_E = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]])
W_U = torch.tensor([[0.0, 2, 1, 0], [0, 0, 0, 2], [1, 0, 0, 0]])
WRITTEN = {
    "token": torch.tensor([1.0, 0, 0]),
    "head 1": torch.tensor([0, 0.5, 0]),
    "head 2": torch.tensor([0.2, 0, -0.3]),
}


def test_shares_by_hand():
    """For "cat", 2 times dimension 1 less the mean: 2 * 2/3, 2 * -1/6, 2 * (0.2 + 1/30), all over 0.5."""
    b_U = torch.tensor([9.0, -0.25, 9, 9])
    shares = residual.logit_shares(WRITTEN, torch.tensor(0.5), W_U, b_U, 1)
    by_hand = {"token": 8 / 3, "head 1": -2 / 3, "head 2": 14 / 15, "b_U": -0.25}
    assert list(shares) == list(by_hand)
    assert shares == pytest.approx(by_hand, abs=1e-6)


def test_shares_by_hand_where_the_norm_subtracts_no_mean():
    """For "cat", 2 times dimension 1, over 0.5; and the direction that says the same."""
    by_hand = {"token": 4, "head 1": 0, "head 2": 0.8, "b_U": 0.25}
    scale = torch.tensor(0.5)
    shares = residual.logit_shares(WRITTEN, scale, W_U, torch.full((4,), 0.25), 1, centred=False)
    assert shares == pytest.approx(by_hand, abs=1e-6)
    assert residual.logit_direction(W_U, scale, 1, centred=False).tolist() == [4, 0, 0]
    assert_close(residual.logit_direction(W_U, scale, 1), torch.tensor([8, -4, -4]) / 3)


@given(seeds, st.integers(1, 6), st.integers(2, 9))
def test_shares_sum_to_the_logit(seed, n_pieces, d_model):
    written = randn(n_pieces, d_model, seed=seed)
    W_U, b_U = randn(d_model, 4, seed=seed + 1), randn(4, seed=seed + 2)
    stream = written.sum(0)
    scale = stream.std(correction=0)
    logits = torch.nn.functional.layer_norm(stream, (d_model,), eps=0) @ W_U + b_U
    for token in range(4):
        shares = residual.logit_shares(as_dict(written), scale, W_U, b_U, token)
        assert sum(shares.values()) == pytest.approx(logits[token].item(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("pos", POSITIONS)
def test_shares_of_the_pieces_sum_to_the_model_s_logit(either, pos):
    model, cache = either.model, either.cache
    written = residual.pieces(model, cache, pos)
    scale = cache["ln_final.hook_scale"][0, pos, 0]
    for token in range(model.cfg.d_vocab):
        shares = residual.logit_shares(written, scale, model.W_U, model.b_U, token)
        assert list(shares) == [*written, "b_U"]
        assert sum(shares.values()) == pytest.approx(either.logits[pos, token].item(), abs=2e-5)


@pytest.mark.parametrize("pos", POSITIONS)
def test_shares_of_the_heads_are_those_of_transformer_lens(either, pos):
    model, cache, token = either.model, either.cache, 5
    written = residual.pieces(model, cache, pos)
    scale = cache["ln_final.hook_scale"][0, pos, 0]
    shares = residual.logit_shares(written, scale, model.W_U, model.b_U, token)
    stack = cache.stack_head_results(pos_slice=pos)  # [head of any layer, batch, d_model]
    theirs = cache.logit_attrs(stack, tokens=torch.tensor([token]), pos_slice=pos)[:, 0]
    ours = torch.tensor([shares[f"{layer}.{head}"] for layer, head in residual.heads(model)])
    assert_close(ours, theirs)


@pytest.mark.parametrize("pos", POSITIONS)
def test_the_direction_of_a_logit_gives_the_same_shares(either, pos):
    model = either.model
    written = residual.pieces(model, either.cache, pos)
    scale = either.cache["ln_final.hook_scale"][0, pos, 0]
    for token in (0, 5, 28):
        direction = residual.logit_direction(model.W_U, scale, token)
        shares = residual.logit_shares(written, scale, model.W_U, model.b_U, token)
        for name, x in written.items():
            assert (x @ direction).item() == pytest.approx(shares[name], abs=1e-5)


def test_what_the_layer_norms_hand_on(either):
    """Their input centred and divided by its size; the last one's size is what the shares are divided by."""
    model, cache = either.model, either.cache
    for layer in range(model.cfg.n_layers):
        x = cache["resid_pre", layer][0]
        normed = torch.nn.functional.layer_norm(x, x.shape[1:], eps=model.cfg.eps)
        assert_close(residual.head_input(model, cache, layer), normed)
    for pos in POSITIONS:
        last = cache["resid_post", model.cfg.n_layers - 1][0, pos]
        size = (last.var(correction=0) + model.cfg.eps).sqrt()
        assert_close(residual.final_scale(model, cache, pos), size)


# ---- rotating the stream -----------------------------------------------------------------------------


@given(seeds, st.integers(1, 24))
def test_a_rotation_is_orthogonal_and_keeps_all_ones(seed, d_model):
    R = residual.rotation(d_model, torch.Generator().manual_seed(seed))
    ones = torch.ones(d_model, dtype=torch.float64)
    assert_close(R @ R.T, torch.eye(d_model, dtype=torch.float64))
    assert_close(R @ ones, ones)
    assert_close(R.T @ ones, ones)


def test_a_rotation_turns_everything_but_all_ones():
    """But for the axis that a rotation of 63 dimensions has; its numbers are as spread as random ones."""
    R = residual.rotation(64, torch.Generator().manual_seed(0))
    unmoved = torch.linalg.svdvals(R - torch.eye(64)) < 1e-3
    assert unmoved.sum() <= 2
    assert R.abs().max() < 0.6
    assert R.std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_a_rotation_comes_from_its_generator_alone():
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(0)
    first, second = residual.rotation(5, generator), residual.rotation(5, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, residual.rotation(5, torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state())


def test_rotated_by_hand():
    """The article's quarter turn of the toy, a transformer of no layers: "cat" goes to (0, 0, 1)."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes = dict(n_layers=0, n_heads=1, d_model=3, d_head=1, n_ctx=1, d_vocab=4)
    cfg = HookedTransformerConfig(**sizes, attn_only=True, normalization_type=None, init_weights=False)
    toy = HookedTransformer(cfg)
    for name, weight in (("embed.W_E", W_E), ("unembed.W_U", W_U)):
        toy.get_parameter(name).data = weight
    toy.pos_embed.W_pos.data.zero_()

    turned = residual.rotated(toy, torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]))
    cat = torch.tensor([[1]])
    assert W_E[1].tolist() == [0, 1, 0]
    assert turned["embed.W_E"][1].tolist() == [0, 0, 1]
    logits, cache = toy.run_with_cache(cat)
    assert logits[0, 0].tolist() == [0, 0, 0, 2]
    assert residual.final_scale(toy, cache, 0) == 1  # for it has no layer norm
    assert torch.func.functional_call(toy, turned, (cat,))[0, 0].tolist() == [0, 0, 0, 2]


@pytest.fixture
def R(either):
    return residual.rotation(either.model.cfg.d_model, torch.Generator().manual_seed(0)).float()


def test_rotated_changes_every_weight_that_touches_the_stream(either, R):
    before = {name: weight.clone() for name, weight in either.model.named_parameters()}
    turned = residual.rotated(either.model, R)
    assert turned.keys() == before.keys()
    touching = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "b_O", "W_U")
    for name, weight in turned.items():
        assert weight.shape == before[name].shape
        if name.endswith(touching):
            assert (weight - before[name]).abs().mean() > 0.1 * before[name].abs().mean(), name
        else:
            assert torch.equal(weight, before[name]), name
    assert all(torch.equal(weight, before[name]) for name, weight in either.model.named_parameters())


def test_rotated_keeps_every_output_and_turns_every_stream(either, R):
    model, tokens = either.model, either.tokens[None]
    turned = residual.rotated(model, R)
    by_call = torch.func.functional_call(model, turned, (tokens,))
    assert_close(by_call[0], either.logits, atol=2e-5, rtol=1e-5)

    loaded = copy.deepcopy(model)
    loaded.load_state_dict(turned, strict=False)
    logits, cache = loaded.run_with_cache(tokens)
    assert_close(logits[0], either.logits, atol=2e-5, rtol=1e-5)
    for layer in range(model.cfg.n_layers):
        assert_close(cache["pattern", layer], either.cache["pattern", layer], atol=2e-6, rtol=1e-5)
        stream = either.cache["resid_post", layer]
        assert_close(cache["resid_post", layer], stream @ R.T, atol=1e-5, rtol=1e-5)


def test_a_rotation_that_moves_all_ones_would_change_the_outputs(one_layer):
    """Why `rotation` keeps that direction: layer norm's mean is the one thing that reads the basis."""
    R = torch.linalg.qr(randn(16, 16, seed=0)).Q.float()
    turned = residual.rotated(one_layer.model, R)
    logits = torch.func.functional_call(one_layer.model, turned, (one_layer.tokens[None],))
    assert (logits[0] - one_layer.logits).abs().max() > 0.1


# ---- running a prompt --------------------------------------------------------------------------------


def test_run_gives_one_prompt_without_its_batch(mini):
    tokens, logits, cache = residual.run(mini, "I like green tea")
    assert tokens[0] == mini.tokenizer.bos_token_id
    assert mini.tokenizer.decode(tokens[1:]) == "I like green tea"
    assert logits.shape == (len(tokens), mini.cfg.d_vocab)
    assert_close(logits, mini(tokens[None])[0])
    assert_close(cache["ln_final.hook_normalized"][0] @ mini.W_U + mini.b_U, logits, atol=1e-4, rtol=1e-5)
