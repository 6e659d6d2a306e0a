"""What all tests share: shapes checked at every call, runs that repeat, and tiny models with every bias.

The import hook comes before any import of `circuits`, so here every jaxtyping annotation of the
package is checked by beartype (`test_a_wrong_shape_is_refused`, in each module's tests, would notice
its loss). A user's own run checks nothing.
"""

import os

import jaxtyping

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch is there: as the scripts set it

jaxtyping.install_import_hook("circuits", "beartype.beartype")

from typing import Any, NamedTuple  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)  # the same rounding on every machine with the same kernels

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

# All different, and d_head * n_heads is not d_model, so that no transposed or misread size goes unseen.
SIZES = dict(n_heads=4, d_head=5, d_vocab=29, n_ctx=11)
N_TOKENS = 7


def pytest_configure(config: pytest.Config) -> None:
    # The project stays on TransformerLens 3.x, which says so at every model made.
    config.addinivalue_line("filterwarnings", "ignore:HookedTransformer is deprecated:DeprecationWarning")


class Ran(NamedTuple):
    """A model and one run of it, without the batch dimension where there is none in `circuits`."""

    model: Any
    tokens: torch.Tensor  # [pos]
    logits: torch.Tensor  # [pos, d_vocab]
    cache: Any


def tiny(n_layers: int, d_model: int, seed: int) -> Any:
    """A random attention-only model whose layer norm is folded ("LNPre") and whose biases are all non-zero.

    No weight is centred, as folding would leave it: so a mean that is not subtracted shows.
    """
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=n_layers,
        d_model=d_model,
        attn_only=True,
        normalization_type="LNPre",
        device="cpu",
        init_weights=False,
        **SIZES,
    )
    model = HookedTransformer(cfg)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        size = 0.5 if name.split(".")[-1].startswith("b_") else parameter.shape[-2] ** -0.5
        if name.endswith(("W_E", "W_pos")):
            size = 1.0
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = (size * random).float()
        assert parameter.all()
    return model.requires_grad_(False).eval()


def ran(model: Any, seed: int) -> Ran:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.cfg.d_vocab, (1, N_TOKENS), generator=generator)
    logits, cache = model.run_with_cache(tokens)
    return Ran(model, tokens[0], logits[0], cache)


@pytest.fixture(scope="session")
def one_layer() -> Ran:
    """A model of one layer and a run of it. Shared by all tests: not to be changed."""
    return ran(tiny(n_layers=1, d_model=16, seed=1), seed=2)


@pytest.fixture(scope="session")
def two_layers() -> Ran:
    """A model of two layers and a run of it. Shared by all tests: not to be changed."""
    return ran(tiny(n_layers=2, d_model=24, seed=3), seed=4)


@pytest.fixture(params=["one_layer", "two_layers"])
def either(request: pytest.FixtureRequest) -> Ran:
    """Each of the two in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def mini() -> Any:
    """The bundled two-layer model, for its tokenizer; what it has learnt is not tested here."""
    from circuits.models import checkpoint

    return checkpoint("mini-2l").model()
