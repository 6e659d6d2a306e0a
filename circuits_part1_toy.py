"""The examples of Part 1 that are worked by hand: four words, a stream of three numbers, no torch.

One function an example, in the article's order and convention: a vector is a column, and a matrix
multiplies it from the left. W_E, W_U and the turn R, which the article shows only in pictures or not at
all, are our choice, consistent with every number in its text.
`python circuits_part1_toy.py` writes results/part1_toy.json and results/part1_toy_stdout.txt.
"""

import math
import sys
from collections import Counter
from itertools import pairwise

import numpy as np

from circuits import cli

WORDS = ["the", "cat", "dog", "sat"]
W_E = np.array([  # [stream, word]: a word's vector is its column
    [1.0, 0.0, 0.0, 0.0],
    [0.0, 1.0, 1.0, 0.0],
    [0.0, 0.0, 1.0, 1.0],
])  # fmt: skip
W_U = np.array([  # [word, stream]: a next word's score is its row times the stream
    [0.0, 0.0, 1.0],
    [2.0, 0.0, 0.0],
    [1.0, 0.0, 0.0],
    [0.0, 2.0, 0.0],
])  # fmt: skip
CORPUS = "the cat sat . the cat ran . the dog sat ."


def sections(report):
    section_1_no_biases(report)
    section_2_embedding(report)
    section_3_unembedding(report)
    section_4_stream_is_a_sum(report)
    section_5_no_privileged_basis(report)
    section_6_virtual_weights(report)
    section_7_zero_layer_table(report)
    section_8_bigrams(report)


def section_1_no_biases(report):
    report.section(1, "No biases: a bias is one more column, for an input that is always 1")
    W, b, x = np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([1.0, -1.0]), np.array([4.0, 5.0])
    W_b, x_1 = np.column_stack([W, b]), np.append(x, 1.0)
    report.quantity("bias.W_b", "[W b]", W_b.tolist())
    report.quantity("bias.x_1", "(x, 1)", x_1.tolist())
    report.quantity("bias.W_x_plus_b", "W x + b", (W @ x + b).tolist())
    report.quantity("bias.W_b_times_x_1", "[W b] (x, 1)", (W_b @ x_1).tolist())


def section_2_embedding(report):
    report.section(2, "Equation 1: the embedding, x0 = W_E t")
    report.quantity("vocabulary", "vocabulary", WORDS)
    report.quantity("embed.W_E", "W_E, a column a word", W_E.tolist())
    report.quantity("embed.t_the", "'the' as a one-hot t", one_hot("the").tolist())
    report.quantity("unembed.x0_the", "x0 = W_E t, the column of 'the'", (W_E @ one_hot("the")).tolist())


def section_3_unembedding(report):
    report.section(3, "Equation 4: the unembedding, T(t) = W_U x, with no layers in between")
    logits = W_U @ W_E @ one_hot("the")
    exponentials = np.exp(logits)
    probabilities = softmax(logits)
    report.quantity("unembed.W_U", "W_U, a row a next word", W_U.tolist())
    report.quantity("unembed.logits", "logits after 'the'", logits.tolist())
    report.quantity("unembed.exponentials", "their exponentials", exponentials.tolist())
    report.quantity("unembed.exp_sum", "  which add up to", exponentials.sum().item())
    report.quantity("unembed.probabilities", "softmax", probabilities.tolist())
    report.quantity("unembed.prediction", "next word", WORDS[probabilities.argmax()])


def section_4_stream_is_a_sum(report):
    report.section(4, "The stream is a sum, and so are the logits: who pushed 'cat' up?")
    written = {
        "token": W_E @ one_hot("the"),
        "head1": np.array([0.0, 0.5, 0.0]),
        "head2": np.array([0.2, 0.0, -0.3]),
    }
    stream, cat = sum(written.values()), WORDS.index("cat")
    for writer, piece in written.items():
        report.quantity(f"stream.{writer}", f"{writer} writes", piece.tolist())
    report.quantity("stream.sum", "the stream, their sum", stream.tolist())
    for writer, piece in written.items():
        report.quantity(f"stream.logits_from_{writer}", f"logits from {writer}", (W_U @ piece).tolist())
        report.quantity(f"stream.cat_from_{writer}", "  for 'cat'", (W_U @ piece)[cat].item())
    by_writer = sum(W_U @ piece for piece in written.values())
    report.quantity("stream.logits_by_writer", "the three lists of logits, added", by_writer.tolist())
    report.quantity("stream.logits", "logits of the whole stream", (W_U @ stream).tolist())
    report.quantity("stream.cat_logit", "  for 'cat'", (W_U @ stream)[cat].item())


def section_5_no_privileged_basis(report):
    report.section(5, "No privileged basis: turn the stream and all that touches it by 90 degrees")
    R = np.array([  # leaves dimension 1 where it is, turns 2 into 3 and 3 into -2
        [1.0, 0.0, 0.0],
        [0.0, 0.0, -1.0],
        [0.0, 1.0, 0.0],
    ])  # fmt: skip
    turned_W_E, turned_W_U = R @ W_E, W_U @ R.T  # a writer turns from the left, a reader from the right
    x, turned_x = W_E @ one_hot("cat"), turned_W_E @ one_hot("cat")
    report.quantity("rotation.R", "R", R.tolist())
    report.quantity("rotation.R_turns_back", "Rᵀ R is the identity", np.array_equal(R.T @ R, np.eye(3)))
    report.quantity("rotation.cat_before", "'cat' before, W_E t", x.tolist())
    report.quantity("rotation.cat_after", "'cat' after, R W_E t", turned_x.tolist())
    report.quantity("rotation.logits_before", "its logits before, W_U W_E t", (W_U @ x).tolist())
    report.quantity(
        "rotation.logits_after", "its logits after, (W_U Rᵀ) (R W_E t)", (turned_W_U @ turned_x).tolist()
    )


def section_6_virtual_weights(report):
    report.section(6, "Virtual weights: from one writer to two readers, through the stream")
    W_O, a = np.array([[0.0], [0.0], [1.0]]), 0.7
    readers = {"A": np.array([[0.0, 0.0, 2.0]]), "B": np.array([[1.0, 0.0, 0.0]])}
    report.quantity(
        "virtual.written", f"the writer adds W_O a to the stream, a = {a}", (W_O * a).ravel().tolist()
    )
    for name, W_I in readers.items():
        report.quantity(
            f"virtual.weight_{name}", f"reader {name}: virtual weight W_I W_O", (W_I @ W_O).item()
        )
        report.quantity(f"virtual.reader_{name}", "  receives W_I (W_O a)", (W_I @ (W_O * a)).item())


def section_7_zero_layer_table(report):
    report.section(7, "The zero-layer transformer is one table, W_U W_E")
    table = W_U @ W_E
    report.say(f"  a row a next word; the columns are the current word: {', '.join(WORDS)}")
    for word, row in zip(WORDS, table, strict=True):
        report.quantity(f"table.{word}", f"next {word!r}", row.tolist())
    report.quantity(
        "table.column_the", "column 'the', logits as in section 3", table[:, WORDS.index("the")].tolist()
    )
    report.quantity("table.after", "highest in each column", [WORDS[i] for i in table.argmax(axis=0)])
    report.quantity("table.rank", "rank of the table, at most 3", np.linalg.matrix_rank(table).item())


def section_8_bigrams(report):
    report.section(8, "The best table is the log of the bigram probabilities")
    words = CORPUS.split()
    after = [follower for word, follower in pairwise(words) if word == "the"]
    counts = Counter(after)
    P = {word: count / len(after) for word, count in counts.items()}
    report.quantity("bigram.corpus", "corpus", CORPUS)
    report.quantity("bigram.after_the", "words that follow 'the'", after)
    report.quantity("bigram.counts", "  counted", dict(counts))
    for word, p in P.items():
        report.quantity(f"bigram.probability.{word}", f"P({word} | the)", p)
    for word, p in P.items():
        report.quantity(f"bigram.log_probability.{word}", f"log P({word} | the)", math.log(p))
    half = dict.fromkeys(P, 0.5)
    report.quantity("bigram.loss.P", "average of -log q, if q = P", average_loss(P, P))
    report.quantity("bigram.loss.half", "  if q = 1/2 for each", average_loss(P, half))
    for c in (0, 5):
        shifted = np.log(list(P.values())) + c
        report.quantity(f"bigram.softmax_plus_{c}", f"softmax(log P + {c})", softmax(shifted).tolist())


def one_hot(word):
    return np.eye(len(WORDS))[WORDS.index(word)]


def average_loss(P, q):
    return sum(p * -math.log(q[word]) for word, p in P.items())


def softmax(logits):
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum()


if __name__ == "__main__":
    sys.exit(cli.run_toy("part1_toy", sections))
