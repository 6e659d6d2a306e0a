"""Reading circuits out of transformer weights: the mathematics behind the two articles.

`models` loads, `layernorm` folds, `residual`, `heads`, `subspaces` and `vocabulary` are the
mathematics, `architecture` says which models it covers, `explore` takes what a reader asks for, `report`
prints and records, `published` compares. Nothing is imported or run here.
"""


class Fault(Exception):
    """What a user can mend: one line that names what is wrong and what would be right."""

    status = 2  # the scripts' exit status
