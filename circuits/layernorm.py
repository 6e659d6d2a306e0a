"""Part 1, section 2: folding layer norm into the weights.

Layer norm of a stream vector x is `(x - mean(x)) / size(x) * w + b`. All of it but the division by the
size is linear, so it can be done once, to the weights, instead of at every token:

1. A reader W (W_Q, W_K, W_V, and W_U after the last layer norm) sees `(x_centred / size) * w + b`.
   Then `w` scales W's rows and `b @ W` is one more bias: the same sum, in another order.
2. What a reader still sees has mean zero, so W's column means meet only zero: subtract them.
   With centred columns W no longer reads the mean of the stream at all.
3. Every layer norm subtracts the mean of the stream, so what a writer (W_E, W_pos, W_O, b_O) adds
   along all-ones is never read: subtract it.
4. Softmax is blind to one number added to all logits, so W_U and b_U lose their mean over the
   vocabulary. Logits move, probabilities do not. This is the only step that changes an output.
5. Attention patterns sum to one, so b_V adds `b_V @ W_O` to the stream whatever the pattern: it moves
   into b_O (biases are a free change: section 2, "No biases").

What remains of layer norm is TransformerLens' "LNPre": subtract the mean, divide by the size. Weights
multiply from the right (`x @ W`), so the stream is the second to last dimension of a reader and the last
of a writer.
"""

from jaxtyping import Float
from torch import Tensor

State = dict[str, Float[Tensor, "..."]]  # parameters under TransformerLens' names


def fold(state: State) -> State:
    """Fold layer norm into an attention-only model's weights, as `HookedTransformer.from_pretrained` does.

    `state` has `embed.W_E` [d_vocab, d_model], `ln_final.{w,b}` [d_model], `unembed.W_U` [d_model, d_vocab]
    and `unembed.b_U` [d_vocab]; and, where the model has them, `pos_embed.W_pos` [n_ctx, d_model] and for
    each layer L `blocks.L.ln1.{w,b}`, `blocks.L.attn.W_{Q,K,V}` [head, d_model, d_head], `b_{Q,K,V}`
    [head, d_head], `W_O` [head, d_head, d_model], `b_O` [d_model]. Returns the folded parameters, which are
    the same but for the layer norms; `state` is left as it was. The memory needed is that of the result.

    Raises KeyError for a parameter that is missing.
    """
    folded = {"embed.W_E": centred(state["embed.W_E"])}
    if "pos_embed.W_pos" in state:
        folded["pos_embed.W_pos"] = centred(state["pos_embed.W_pos"])
    layer = 0
    while f"blocks.{layer}.attn.W_O" in state:
        folded |= fold_attention(state, f"blocks.{layer}.")
        layer += 1
    W_U, b_U = fold_reader(
        state["unembed.W_U"], state["unembed.b_U"], state["ln_final.w"], state["ln_final.b"]
    )
    W_U -= W_U.mean(-1, keepdim=True)  # step 4; both are new tensors, so in place
    b_U -= b_U.mean()
    return folded | {"unembed.W_U": W_U, "unembed.b_U": b_U}


def fold_attention(state: State, block: str) -> State:
    """The folded parameters of one attention layer, named under `block` ("blocks.0.")."""
    ln_w, ln_b = state[block + "ln1.w"], state[block + "ln1.b"]
    attn = {name: state[f"{block}attn.{name}"] for name in ("W_O", "b_O")}
    for name in "QKV":
        W, b = state[f"{block}attn.W_{name}"], state[f"{block}attn.b_{name}"]
        attn["W_" + name], attn["b_" + name] = fold_reader(W, b, ln_w, ln_b)
    moved = (attn["b_V"].unsqueeze(-1) * attn["W_O"]).sum((0, 1))  # step 5, [d_model]
    attn |= {"W_O": centred(attn["W_O"]), "b_O": centred(attn["b_O"] + moved), "b_V": attn["b_V"] * 0}
    return {f"{block}attn.{name}": tensor for name, tensor in attn.items()}


def fold_reader(
    W: Float[Tensor, "*head d_model out"],
    b: Float[Tensor, "*head out"],
    ln_w: Float[Tensor, "d_model"],
    ln_b: Float[Tensor, "d_model"],
) -> tuple[Float[Tensor, "*head d_model out"], Float[Tensor, "*head out"]]:
    """Steps 1 and 2: a reader and its bias, for a stream that is centred and divided by its size only."""
    b = b + ln_b @ W  # by the unscaled W: layer norm adds its bias after it scales
    column_means = ln_w @ W / len(ln_w)  # of the scaled W
    W = W * ln_w.unsqueeze(-1)
    W -= column_means.unsqueeze(-2)
    return W, b


def centred(W: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
    """Step 3: a writer without its part along all-ones."""
    row_means = W @ W.new_full(W.shape[-1:], 1 / W.shape[-1])  # two to three times as fast as W.mean(-1)
    return W - row_means.unsqueeze(-1)
