"""The examples of Part 2 that are worked by hand: heads of one or two numbers, no torch.

One function an example, in the article's order and convention: a matrix multiplies a vector from the
left, and the tokens are the rows of the table x, so that x Wᵀ changes every token by W. What the article
shows only in pictures or not at all (W_O of the two heads, x and A of the three steps, the matrices of the
mixed product) is our choice, consistent with every number in its text.
`python circuits_part2_toy.py` writes results/part2_toy.json and results/part2_toy_stdout.txt.
"""

import sys

import numpy as np

from circuits import cli

# The head of the three steps: d_model 3, d_head 1. W_V adds up dimensions 1 and 2, W_O writes into 3.
W_V = np.array([[1.0, 1.0, 0.0]])  # [d_head, d_model]
W_O = np.array([[0.0], [0.0], [1.0]])  # [d_model, d_head]
X = np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # [token, d_model]
A = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.85, 0.1, 0.05]])  # [destination, source]

# The head of the QK matrix: d_model 2, d_head 1.
W_Q, W_K = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])  # [d_head, d_model]
DESTINATION, SOURCE = np.array([2.0, 0.0]), np.array([0.0, 3.0])


def sections(report):
    section_1_heads_add(report)
    section_2_three_steps(report)
    section_3_tensor_product(report)
    section_4_derivation(report)
    section_5_pattern_in_one_step(report)
    section_6_what_is_not_linear(report)
    section_7_low_rank(report)
    section_8_reparametrise(report)
    section_9_products_of_heads(report)


def section_1_heads_add(report):
    report.section(1, "Heads are independent and additive: two heads on a stream of three numbers")
    r1, r2 = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    W_O1 = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # [d_model, d_head]
    W_O2 = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    W_O_all, stacked = np.hstack([W_O1, W_O2]), np.concatenate([r1, r2])
    concat = W_O_all @ stacked
    added = W_O1 @ r1 + W_O2 @ r2
    columns = sum(column * number for column, number in zip(W_O_all.T, stacked, strict=True))
    report.quantity("concat.r1", "head 1: its result r1", r1.tolist())
    report.quantity("concat.W_O1", "  its W_O", W_O1.tolist())
    report.quantity("concat.head1", "  it writes", (W_O1 @ r1).tolist())
    report.quantity("concat.r2", "head 2: its result r2", r2.tolist())
    report.quantity("concat.W_O2", "  its W_O", W_O2.tolist())
    report.quantity("concat.head2", "  it writes", (W_O2 @ r2).tolist())
    report.quantity("concat.sum", "both heads added", added.tolist())
    report.quantity("concat.stacked", "r1 and r2 stacked", stacked.tolist())
    report.quantity("concat.W_O_all", "W_O1 and W_O2 side by side", W_O_all.tolist())
    report.quantity("concat.concat", "  times the stack", concat.tolist())
    report.quantity("concat.scaled_columns", "  as a sum of scaled columns", columns.tolist())
    report.quantity("concat.concat_equals_sum", "concatenating = adding", np.array_equal(concat, added))


def section_2_three_steps(report):
    report.section(2, "A head moves information: the three steps, for three tokens")
    values = X @ W_V.T  # [token, d_head]
    results = A @ values
    output = results @ W_O.T  # [token, d_model]
    report.quantity("three_steps.x", "x, a row a token", X.tolist())
    report.quantity("three_steps.A", "pattern A, a row a destination", A.tolist())
    report.quantity("three_steps.values", "1. values W_V x_j", values.ravel().tolist())
    report.quantity("three_steps.own_value_token3", "     token 3's own", values[2].item())
    report.quantity("three_steps.results", "2. mixed by A", results.ravel().tolist())
    report.quantity(
        "three_steps.from_token1", "     of token 3's, from token 1", (A[2, 0] * values[0]).item()
    )
    report.quantity("three_steps.output", "3. written by W_O, a row a token", output.tolist())
    report.quantity(
        "three_steps.received_by_token3", "     dimension 3 of token 3 receives", output[2, 2].item()
    )


def section_3_tensor_product(report):
    report.section(3, "The two sides of x: A mixes two tokens, W swaps a token's two numbers")
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    A = np.array([[1.0, 0.0], [0.5, 0.5]])
    W = np.array([[0.0, 1.0], [1.0, 0.0]])
    A_first, W_first = (A @ x) @ W.T, A @ (x @ W.T)
    kronecker = np.kron(A, W)
    result = kronecker @ x.ravel()
    report.quantity("tensor.x", "x, a row a token", x.tolist())
    report.quantity("tensor.A", "A", A.tolist())
    report.quantity("tensor.W", "W", W.tolist())
    report.quantity("tensor.mixed", "A first: A x", (A @ x).tolist())
    report.quantity("tensor.A_first", "  then (A x) Wᵀ", A_first.tolist())
    report.quantity("tensor.changed", "W first: x Wᵀ", (x @ W.T).tolist())
    report.quantity("tensor.W_first", "  then A (x Wᵀ)", W_first.tolist())
    report.quantity("tensor.kronecker", "A ⊗ W as one matrix", kronecker.tolist())
    report.quantity("tensor.x_flat", "x flattened", x.ravel().tolist())
    report.quantity("tensor.result_flat", "  A ⊗ W times it", result.tolist())
    same = np.array_equal(result, A_first.ravel()) and np.array_equal(result, W_first.ravel())
    report.quantity("tensor.two_sided_equals_kronecker", "all three ways agree", same)


def section_4_derivation(report):
    report.section(4, "The derivation, step by step: three factors collapse into A ⊗ W_OV")
    Id_tokens, Id_head = np.eye(len(A)), np.eye(len(W_V))
    W_OV = W_O @ W_V
    first_two = np.kron(Id_tokens, W_O) @ np.kron(A, Id_head)
    three = first_two @ np.kron(Id_tokens, W_V)
    collapses = np.array_equal(first_two, np.kron(A, W_O))
    report.quantity("derivation.first_two", "(Id ⊗ W_O) (A ⊗ Id) = A ⊗ W_O", collapses)
    collapses = np.array_equal(three, np.kron(A, W_OV))
    report.quantity("derivation.all_three", "(A ⊗ W_O) (Id ⊗ W_V) = A ⊗ W_OV", collapses)
    output = (three @ X.ravel()).reshape(X.shape)
    report.quantity("derivation.output", "A ⊗ W_OV on the x of section 2", output.tolist())


def section_5_pattern_in_one_step(report):
    report.section(5, "The pattern in one step: W_QK = W_Qᵀ W_K")
    query, key = W_Q @ DESTINATION, W_K @ SOURCE
    W_QK = W_Q.T @ W_K
    report.quantity("qk.query", "query of the destination (2, 0)", query.item())
    report.quantity("qk.key", "key of the source (0, 3)", key.item())
    report.quantity("qk.score", "score: query · key", (query @ key).item())
    report.quantity("qk.W_QK", "W_QK", W_QK.tolist())
    report.quantity("qk.score_from_W_QK", "score: x_iᵀ W_QK x_j", (DESTINATION @ W_QK @ SOURCE).item())


def section_6_what_is_not_linear(report):
    report.section(6, "Two linear operations, and only one is non-linear: what doubling x does")
    W_QK, W_OV = W_Q.T @ W_K, W_O @ W_V
    x = np.stack([SOURCE, DESTINATION])  # the destination comes second, and may read both
    once, doubled = DESTINATION @ W_QK @ x.T, (2 * DESTINATION) @ W_QK @ (2 * x).T
    fixed, fixed_doubled = A @ X @ W_OV.T, A @ (2 * X) @ W_OV.T
    report.quantity("nonlinear.scores", "scores of the source, of itself", once.tolist())
    report.quantity("nonlinear.scores_when_x_doubles", "  when x doubles", doubled.tolist())
    report.quantity(
        "nonlinear.score_ratio_when_x_doubles", "  the score grows by", (doubled[0] / once[0]).item()
    )
    report.quantity("nonlinear.pattern", "pattern of the destination", softmax(once).tolist())
    report.quantity("nonlinear.pattern_when_x_doubles", "  when x doubles", softmax(doubled).tolist())
    report.quantity("nonlinear.output", "A of section 2 fixed: token 3 receives", fixed[2].tolist())
    report.quantity("nonlinear.output_when_x_doubles", "  when x doubles", fixed_doubled[2].tolist())
    ratio = (fixed_doubled[2, 2] / fixed[2, 2]).item()
    report.quantity("nonlinear.output_ratio_with_fixed_pattern", "  the output grows by", ratio)


def section_7_low_rank(report):
    report.section(7, "W_OV and W_QK are low-rank: what the head of section 2 reads, and where it writes")
    W_OV = W_O @ W_V
    U, S, Vt = np.linalg.svd(W_OV)
    sign = np.sign(Vt[0, np.abs(Vt[0]).argmax()])  # the pair is defined up to one sign
    reads, writes = sign * Vt[0], sign * U[:, 0]
    report.quantity("svd.W_OV", "W_OV = W_O W_V", W_OV.tolist())
    report.quantity("svd.rank", "rank", np.linalg.matrix_rank(W_OV).item())
    report.quantity("svd.singular_value", "its one singular value", S[0].item())
    report.quantity("svd.singular_values", "all three", clean(S))
    report.quantity("svd.input_direction", "input direction: it reads", clean(reads))
    report.quantity("svd.output_direction", "output direction: it writes", clean(writes))
    report.quantity("svd.product", "output times value times inputᵀ", clean(np.outer(writes, S[0] * reads)))


def section_8_reparametrise(report):
    report.section(8, "Queries, keys and values are superficial: any invertible M, here M = 2")
    M = np.array([[2.0]])  # [d_head, d_head]
    new_V, new_O = M @ W_V, W_O @ np.linalg.inv(M)
    new_Q, new_K = M @ W_Q, np.linalg.inv(M).T @ W_K
    output, new_output = A @ (X @ W_V.T) @ W_O.T, A @ (X @ new_V.T) @ new_O.T
    score, new_score = (W_Q @ DESTINATION) @ (W_K @ SOURCE), (new_Q @ DESTINATION) @ (new_K @ SOURCE)
    report.quantity("reparametrise.new_W_O", "W_O M⁻¹", new_O.ravel().tolist())
    report.quantity("reparametrise.new_values", "new values M W_V x_j", (X @ new_V.T).ravel().tolist())
    change = np.abs(new_output - output).max().item()
    report.quantity("reparametrise.max_output_change", "largest change in an output", change)
    report.quantity("reparametrise.new_query", "section 5: query M W_Q x_i", (new_Q @ DESTINATION).item())
    report.quantity("reparametrise.new_key", "  key (M⁻¹)ᵀ W_K x_j", (new_K @ SOURCE).item())
    report.quantity("reparametrise.score_change", "  change in the score", abs(new_score - score).item())


def section_9_products_of_heads(report):
    report.section(9, "Products of heads behave like heads: the mixed-product property on 2 x 2 matrices")
    # Any matrices will do. (Patterns of two tokens would not: their order makes no difference.)
    A1, W1 = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    A2, W2 = np.array([[1.0, 0.0], [3.0, 1.0]]), np.array([[1.0, 2.0], [0.0, 3.0]])
    one_after_the_other = np.kron(A2, W2) @ np.kron(A1, W1)
    one_head = np.kron(A2 @ A1, W2 @ W1)
    report.quantity("mixed_product.A2_A1", "A2 A1", (A2 @ A1).tolist())
    report.quantity("mixed_product.W2_W1", "W2 W1", (W2 @ W1).tolist())
    report.quantity("mixed_product.one_head", "(A2 A1) ⊗ (W2 W1)", one_head.tolist())
    difference = np.abs(one_after_the_other - one_head).max().item()
    report.quantity("mixed_product.max_difference", "largest difference to (A2 ⊗ W2) (A1 ⊗ W1)", difference)


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def clean(values):
    """The numbers that an SVD gives, with its rounding noise, some 1e-16, taken off the zeros."""
    return (np.round(values, 12) + 0.0).tolist()


if __name__ == "__main__":
    sys.exit(cli.run_toy("part2_toy", sections))
