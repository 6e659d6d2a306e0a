"""What is read from the weights, against the model itself with one thing in it changed."""

import pytest
import torch
from jaxtyping import TypeCheckError
from torch.testing import assert_close

from circuits import heads, interventions, residual

POSITIONS = [0, 3, -1]


def test_a_wrong_shape_is_refused(one_layer):
    """Torch itself would take the same stream from every piece, or its own number from each dimension."""
    with pytest.raises(TypeCheckError, match="stream"):
        interventions.without_each(one_layer.model, {"x": torch.ones(16)}, torch.ones(1, 16), [])


@pytest.mark.parametrize("pos", POSITIONS)
def test_with_the_scale_held_a_logit_falls_by_the_piece_s_share(either, pos):
    model, cache = either.model, either.cache
    written = residual.pieces(model, cache, pos)
    scale = cache["ln_final.hook_scale"][0, pos]
    stream = cache["resid_post", model.cfg.n_layers - 1][0, pos]
    logits = interventions.without_each(model, written, stream, interventions.hold_scale(model, scale))
    assert logits.shape == (len(written), model.cfg.d_vocab)
    for token in range(model.cfg.d_vocab):
        shares = residual.logit_shares(written, scale[0], model.W_U, model.b_U, token)
        falls = dict(zip(written, (either.logits[pos, token] - logits[:, token]).tolist(), strict=True))
        assert falls == pytest.approx({name: shares[name] for name in written}, abs=2e-5)


@pytest.mark.parametrize("pos", POSITIONS)
def test_with_the_scale_moving_layer_norm_is_that_of_what_is_left(either, pos):
    model = either.model
    written = residual.pieces(model, either.cache, pos)
    stream = either.cache["resid_post", model.cfg.n_layers - 1][0, pos]
    logits = interventions.without_each(model, written, stream, [])
    for row, piece in zip(logits, written.values(), strict=True):
        left = torch.nn.functional.layer_norm(stream - piece, stream.shape, eps=model.cfg.eps)
        assert_close(row, left @ model.W_U + model.b_U, atol=1e-5, rtol=1e-5)


def test_the_whole_model_is_as_it_was_afterwards(either):
    interventions.without_each(
        either.model, {"x": torch.ones(either.model.cfg.d_model)}, torch.ones(either.model.cfg.d_model),
        interventions.hold_scale(either.model, torch.ones(1)),
    )  # fmt: skip
    assert torch.equal(either.model(either.tokens[None])[0], either.logits)


def rewritten(ran, layer, head, r):
    """The logits of a model of which one layer's output is put together by hand, head by head."""
    model, cache = ran.model, ran.cache
    results = [r if h == head else cache["z", layer][0, :, h] for h in range(model.cfg.n_heads)]
    written = sum(z @ model.W_O[layer, h] for h, z in enumerate(results)) + model.b_O[layer]
    stream = cache["resid_pre", layer] + written
    return model(stream, start_at_layer=layer + 1)[0]


@pytest.mark.parametrize("head", range(4))
def test_a_head_taken_out_writes_nothing_and_the_others_what_they_wrote(either, head):
    model = either.model
    for layer in range(model.cfg.n_layers):
        hook = interventions.set_result(layer, head, torch.zeros(()))
        logits = model.run_with_hooks(either.tokens[None], fwd_hooks=[hook])[0]
        by_hand = rewritten(either, layer, head, torch.zeros(7, 5))
        assert_close(logits, by_hand, atol=2e-5, rtol=1e-5)
        assert (logits - either.logits).abs().max() > 0.01


@pytest.mark.parametrize("head", range(4))
def test_a_frozen_pattern_with_another_prompt_s_values(either, head):
    """As the model itself gives it with its pattern and its values replaced where it computes them."""
    model, layer = either.model, either.model.cfg.n_layers - 1
    others = torch.arange(7)
    _, cache = model.run_with_cache(others[None])
    A = either.cache["pattern", layer][0, head]
    W_V, b_V, W_O = model.W_V[layer, head], model.b_V[layer, head], model.W_O[layer, head]
    r, _ = heads.three_steps(cache["normalized", layer, "ln1"][0], A, W_V, b_V, W_O)
    hook = interventions.set_result(layer, head, r)
    logits = model.run_with_hooks(either.tokens[None], fwd_hooks=[hook])[0]

    def freeze(pattern, hook):
        pattern[0, head] = A
        return pattern

    def swap(v, hook):
        v[0, :, head] = cache["v", layer][0, :, head]
        return v

    block = f"blocks.{layer}.attn"
    hooks = [(f"{block}.hook_pattern", freeze), (f"{block}.hook_v", swap)]
    theirs = model.run_with_hooks(either.tokens[None], fwd_hooks=hooks)[0]
    assert_close(logits, theirs, atol=2e-5, rtol=1e-5)
    assert (logits - either.logits).abs().max() > 0.01


@pytest.mark.parametrize("head", range(4))
def test_what_the_weights_say_is_what_the_model_does_at_a_held_scale(one_layer, head):
    """Part 2, section 3: A times the OV columns of the stream, and b_V, which no pattern can change."""
    model, cache, token = one_layer.model, one_layer.cache, 5
    A, scale = cache["pattern", 0][0, head], cache["ln_final.hook_scale"][0]
    direction = residual.logit_direction(model.W_U, scale[-1, 0], token)
    W_OV = heads.W_OV(model, 0, head)
    said = A[-1] @ (cache["normalized", 0, "ln1"][0] @ W_OV.AB @ direction)
    said = said + model.b_V[0, head] @ model.W_O[0, head] @ direction
    hooks = [interventions.set_result(0, head, torch.zeros(())), *interventions.hold_scale(model, scale)]
    logits = model.run_with_hooks(one_layer.tokens[None], fwd_hooks=hooks)[0]
    assert_close(one_layer.logits[-1, token] - logits[-1, token], said, atol=1e-5, rtol=1e-5)
