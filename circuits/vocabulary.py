"""From weights to tokens: the direct path, OV columns, QK rows, and who is its own top output.

Part 1 section 4 and Part 2 section 7 of the articles; the paper's "Zero-Layer Transformers" and
"The QK and OV circuits". The full tables are d_vocab x d_vocab and never built: one row at a time,
or, for `own_place`, one block of the vocabulary at a time.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuits import Fault, architecture

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


def direct_path(
    W_E: Float[Tensor, "d_vocab d_model"], W_U: Float[Tensor, "d_model d_vocab"], token: int
) -> Float[Tensor, " d_vocab"]:
    """The row of W_E W_U for `token`: the next-token scores from the token alone (Part 1, section 4)."""
    return W_E[token] @ W_U


def place(scores: Float[Tensor, " n"], index: int) -> int:
    """Where `index` stands from the highest score down; 1 is the highest."""
    return int((scores > scores[index]).sum()) + 1


def normalised(W_E: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
    """Each embedding as layer norm hands it to a head, but for a factor: centred, divided by its deviation.

    The unbiased one, as the article has it: QK scores are (d_model - 1) / d_model of what the model's own
    layer norm gives, OV outputs the square root of that. An embedding that is constant becomes zero.
    """
    W_E = W_E - W_E.mean(-1, keepdim=True)
    return W_E.div_(W_E.std(-1, keepdim=True).clamp_min(torch.finfo(W_E.dtype).tiny))


def embeddings(model: "transformer_lens.HookedTransformer") -> Float[Tensor, "d_vocab d_model"]:
    """W_E as it enters the stream: after the embedding's own layer norm, where the model has one."""
    return model.embed.ln(model.W_E) if model.cfg.post_embedding_ln else model.W_E


def as_read(
    model: "transformer_lens.HookedTransformer", tokens: Int[Tensor, " n"] | None = None
) -> Float[Tensor, "n d_model"]:
    """The embeddings of `tokens` (of all) as the model's norm hands them to a head.

    `normalised`; where the norm is RMS norm, without the centring.
    """
    W_E = embeddings(model) if tokens is None else embeddings(model)[tokens]
    if architecture.centres(model.cfg):
        return normalised(W_E)
    if model.cfg.normalization_type is None:
        return W_E
    return W_E / W_E.square().mean(-1, keepdim=True).sqrt()


def ordinary(d_vocab: int) -> Int[Tensor, " n"]:
    """The article's 2,000 ordinary tokens, 1000 to 2999; all tokens of a vocabulary without those."""
    return torch.arange(1000, 3000) if d_vocab >= 3000 else torch.arange(d_vocab)


def ov_column(
    x: Float[Tensor, " d_model"],
    W_V: Float[Tensor, "d_model d_head"],
    W_O: Float[Tensor, "d_head d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
) -> Float[Tensor, " d_vocab"]:
    """What reading the embedding `x` with full weight adds to every logit (Part 2, section 7)."""
    return x @ W_V @ W_O @ W_U


def qk_row(
    x: Float[Tensor, " d_model"],
    W_Q: Float[Tensor, "d_model d_head"],
    keys: Float[Tensor, "d_vocab d_head"],
    divisor: float | None = None,
) -> Float[Tensor, " d_vocab"]:
    """The score that destination `x` gives every source token, from the `keys` W_E W_K of all of them.

    Divided by sqrt(d_head), or by the layer's own `divisor`; positions and biases left out (Part 2,
    section 7).
    """
    return keys @ (x @ W_Q) / (divisor or W_Q.shape[1] ** 0.5)


def own_place(
    rows: Float[Tensor, "n k"],
    columns: Float[Tensor, "k d_vocab"],
    tokens: Int[Tensor, " n"],
    most: int,
    block: int | None = None,
) -> Int[Tensor, " n"]:
    """Where `tokens[i]` stands in `rows[i] @ columns`, 1 for the highest; `most + 1` where below `most`.

    As in a stable sort from the highest down: of equal scores the lower index comes first.

    1. Go through the vocabulary in blocks. Count for each token the outputs that lead its own by more
       than rounding can account for, and those that rounding might put above it. Few have any in a block:
       only the tiles whose highest score is not clearly below the token's own are looked into.
    2. Drop a token as soon as `most` outputs lead it. Most drop at once, so the first blocks are narrow.
    3. Where the two counts differ take the whole row again, and the outputs near its own in float64,
       one dot product at a time: equal columns come out equal, which in a matrix product they need not.

    A block of scores is at most `TOKENS` high and `OUTPUTS` (or `block`) wide, which the processor's own
    memory holds: a few of those, and one copy of `rows`, is all the memory it needs.
    """
    own = (rows * columns[:, tokens.long()].T).sum(1)
    # What rounding can do to the difference of two k-term dot products
    slack = 2 * rows.shape[1] * torch.finfo(rows.dtype).eps * rows.norm(dim=1) * columns.norm(dim=0).max()
    least, clear = own - slack, own + slack
    ahead = torch.zeros(len(rows), dtype=torch.int64)
    near = torch.zeros_like(ahead)
    silent = slack == 0  # a row, or a table, of zeros: of its equal scores the first come first
    ahead[silent] = tokens[silent].long()
    alive, start, width = (~silent).nonzero().squeeze(1), 0, block or TILE
    while start < columns.shape[1] and len(alive):
        here, left = columns[:, start : start + width], []
        for some in alive.split(TOKENS):
            scores, at = rows[some] @ here, tokens[some] - start
            inside = (at >= 0) & (at < here.shape[1])
            scores[inside, at[inside].long()] = -torch.inf
            tiles = scores.unflatten(1, (-1, math.gcd(here.shape[1], TILE)))
            i, tile = (tiles.amax(2) >= least[some, None]).nonzero(as_tuple=True)
            rivals, those = tiles[i, tile], some[i]
            leads = (rivals > clear[those, None]).sum(1)
            ahead.index_add_(0, those, leads)
            near.index_add_(0, those, (rivals >= least[those, None]).sum(1) - leads)
            left.append(some[ahead[some] < most])
        alive = torch.cat(left)
        start, width = start + width, block or min(2 * width, OUTPUTS)
    undecided = alive[near[alive] > 0]
    for some in undecided.split(max(1, TOKENS * OUTPUTS // columns.shape[1])) if len(undecided) else ():
        scores, token, x = rows[some] @ columns, tokens[some].long(), rows[some].double()
        leads = scores > clear[some, None]
        i, j = ((scores >= least[some, None]) & ~leads).nonzero(as_tuple=True)
        parts = zip(
            *(index.split(max(1, TOKENS * OUTPUTS // rows.shape[1])) for index in (i, j)), strict=True
        )
        exact = torch.cat([(x[a] * columns.T[b]).contiguous().sum(1) for a, b in parts])
        mine = torch.empty(len(some), dtype=exact.dtype)
        itself = j == token[i]
        mine[i[itself]] = exact[itself]
        before = (exact > mine[i]) | ((exact == mine[i]) & (j < token[i]))
        ahead[some] = leads.sum(1).index_add(0, i, before.long())
    ahead[~slack.isfinite()] = most  # what is no number, or has one among its rivals, has no place
    return ahead.clamp_max(most) + 1


TOKENS, OUTPUTS, TILE = 1024, 1024, 64  # a block of scores: 4 MB of float32


def own_top(
    rows: Float[Tensor, "n k"],
    columns: Float[Tensor, "k d_vocab"],
    tokens: Int[Tensor, " n"],
    block: int | None = None,
    top: int = 1,
) -> Bool[Tensor, " n"]:
    """Whether `tokens[i]` is among the `top` highest of `rows[i] @ columns`, as `own_place` ranks them."""
    return own_place(rows, columns, tokens, top, block) <= top


def own_top_share(
    rows: Float[Tensor, "n k"], columns: Float[Tensor, "k d_vocab"], tokens: Int[Tensor, " n"]
) -> float:
    """The share of `tokens` whose highest output is the token itself: a measure of copying."""
    return own_top(rows, columns, tokens).float().mean().item()


def eigenvalue_copying(rows: Float[Tensor, "d_vocab k"], columns: Float[Tensor, "k d_vocab"]) -> float:
    """Σ Re λ / Σ |λ| over the eigenvalues of `rows @ columns`: 1 all copy, -1 all suppress (float64).

    The paper's "Copying / primitive in-context learning" and its summary of OV eigenvalues. The table is
    d_vocab x d_vocab; its eigenvalues but for zeros are those of `columns @ rows`, k x k. Of an OV circuit
    the factors are (W_E W_V, W_O W_U), of a QK circuit (W_E W_Q, (W_E W_K)ᵀ); a sum of two circuits has
    the factors of both side by side, and so a product of 2 x 2 blocks. 0 where every eigenvalue is.
    """
    parts = zip(columns.split(8192, 1), rows.split(8192), strict=True)  # so that no copy is whole
    eigenvalues = torch.linalg.eigvals(sum(c.double() @ r.double() for c, r in parts))
    total = eigenvalues.abs().sum()
    return (eigenvalues.real.sum() / total).item() if total else 0.0


def reader(model: "transformer_lens.HookedTransformer") -> Callable[[Int[Tensor, ""] | int], str]:
    """A function from token ids to their text; a piece of a character is told from others by its id."""

    def text(token: Int[Tensor, ""] | int) -> str:
        decoded = model.tokenizer.decode([int(token)], clean_up_tokenization_spaces=False)
        return f"{decoded}#{int(token)}" if "\ufffd" in decoded else decoded

    return text


def single_token(model: "transformer_lens.HookedTransformer", word: str) -> int:
    """The id of `word`. Raises Fault, naming the pieces, where it is not one token."""
    tokens = model.to_tokens(word, prepend_bos=False)[0]
    if len(tokens) != 1:
        pieces = [reader(model)(token) for token in tokens]
        raise Fault(f"{word!r} is {len(pieces)} tokens for {model.cfg.model_name}: {pieces}")
    return int(tokens[0])


def tokens(model: "transformer_lens.HookedTransformer", prompt: str) -> Int[Tensor, " pos"]:
    """The tokens of a prompt, BOS first if the model's prompts begin with one.

    Text that spells a special token is that token, as TransformerLens reads it (`specials` finds them).
    Raises Fault where the model has no tokenizer, and for a prompt that is no text, that gives no token at
    all, or that is longer than the context (never truncated, as TransformerLens would).
    """
    name, n_ctx = model.cfg.model_name, model.cfg.n_ctx
    if model.tokenizer is None:
        raise Fault(f"{name} has no tokenizer: give HookedTransformer(cfg, tokenizer=...) one")
    encodable(prompt)
    found = model.to_tokens(prompt, truncate=False)[0]
    if not len(found):
        raise Fault(f"an empty prompt is no token for {name}, whose prompts begin without a BOS")
    if len(found) > n_ctx:
        raise Fault(f"the prompt is {len(found):,} tokens, more than the {n_ctx:,} of {name}'s context")
    return found.long()


def encodable(text: str) -> bytes:
    """`text` as UTF-8. Raises Fault for half a character, which a shell may hand over."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Fault(f"{text!r} is not text: {error.reason} at character {error.start}") from error


def own_tokens(model: "transformer_lens.HookedTransformer", prompt: str) -> list[int]:
    """The distinct tokens of a prompt in their order, without the BOS that the model puts before it.

    Of an empty prompt, that BOS.
    """
    written = model.to_tokens(prompt, prepend_bos=False, truncate=False)[0].tolist() if prompt else []
    return list(dict.fromkeys(written or tokens(model, prompt).tolist()))


def specials(model: "transformer_lens.HookedTransformer", prompt: str) -> list[str]:
    """The special tokens that the prompt itself spells, each once."""
    special = set(model.tokenizer.all_special_ids)
    return [reader(model)(token) for token in own_tokens(model, prompt) if prompt and token in special]


def entries(
    model: "transformer_lens.HookedTransformer", words: list[str] | list[int]
) -> list[tuple[str, str, int]]:
    """(key for a results file, text, token id) for words, or for token ids, whose keys end in "#id".

    Raises Fault, naming the pieces, for a word that is not one token.
    """
    text = reader(model)
    return [
        (word.strip(), word, single_token(model, word))
        if isinstance(word, str)
        else (f"{text(word).strip().removesuffix(f'#{word}')}#{word}", text(word), word)
        for word in words
    ]
