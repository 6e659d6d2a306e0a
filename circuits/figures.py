"""Pictures of a run, drawn from its recorded quantities alone: a PNG and an SVG each, beside the JSON.

One look for all: as wide as an article's column, Okabe and Ito's colours and the cividis map (both
made for every kind of colour vision), titles that say what is shown and leave the finding to the reader.
The same quantities give the same bytes: no dates, fixed ids in the SVG, its letters drawn as paths.
A picture whose quantities a run did not measure is left out.
"""

import math
import os
from pathlib import Path
from typing import Any

from circuits import Fault
from circuits.hub import first_line

WIDTH = 7  # inches
PANELS = 12  # words in one picture
BLUE, ORANGE, GREEN, VERMILLION, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
DARK, GREY, PALE = "#333333", "#999999", "#E5E5E5"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is there everywhere
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DARK,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "legend.framealpha": 1,
    "legend.edgecolor": "white",
    "legend.fancybox": False,
    "figure.titlesize": 10.5,
    "figure.titleweight": "bold",
    "image.cmap": "cividis",
    "savefig.dpi": 150,
    "svg.fonttype": "path",
    "svg.hashsalt": "circuits",
    "text.parse_math": False,  # a token may hold a dollar sign
}


def check() -> None:
    """Find out before the work whether pictures can be drawn. Raises Fault."""
    try:
        from matplotlib.figure import Figure  # noqa: F401
    except ImportError as error:
        raise Fault('--figures needs matplotlib: pip install -e ".[figures]"') from error
    except Exception as error:  # of its settings, or broken
        raise Fault(f"--figures needs a matplotlib that works: {first_line(error)}") from error


def draw(part: str, measured: dict[str, Any], folder: Path) -> list[str]:
    """Write every picture of `part` into `folder`; returns the files' names."""
    import matplotlib

    names = []
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        for name, (picture, needs) in PICTURES[part].items():
            if not all(id in measured for id in needs):
                continue
            fig = picture(measured)
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
                file = folder / f"{part}_{name}.{kind}"
                unfinished = file.with_suffix(f".part.{kind}")
                try:
                    fig.savefig(unfinished, metadata=metadata)
                    os.replace(unfinished, file)
                except BaseException:
                    unfinished.unlink(missing_ok=True)
                    raise
                names.append(file.name)
    return names


# ---- Part 1 -------------------------------------------------------------------------------------------


def logit_shares(q):
    """Section 3: sorted bars and their sum, and what the logit falls by without the piece."""
    shares, falls = under(q, "3.share."), under(q, "3.removal.scale_moves.")
    order = sorted(shares, key=shares.get)
    fig, (ax, below) = page(
        6.2, f"Pieces of the stream and the logit of {token(q['3.prediction'])}", 2, height_ratios=[9, 1]
    )
    colours = [piece_colour(name) for name in order]
    ax.barh(range(1, len(order) + 1), [shares[name] for name in order], color=colours)
    ax.barh(-0.5, q["3.sum_of_shares"], color=DARK)
    ax.axvline(q["3.sum_of_shares"], color=DARK, linewidth=0.8, linestyle=":")
    places = [place for place, name in enumerate(order, 1) if name in falls]
    ax.scatter([falls[order[place - 1]] for place in places], places, s=16, color="white", edgecolor=DARK,
               linewidth=0.9, zorder=3)  # fmt: skip
    ax.set_yticks([-0.5, *range(1, len(order) + 1)], ["sum of all", *map(piece_label, order)])
    ax.set_ylim(-1.2, len(order) + 0.7)
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.grid(axis="x")
    ax.set_xlabel("logit")
    kinds = {"head of layer 0": SKY, "head of a later layer": BLUE, "embeddings": GREEN, "other": GREY}
    present = {label: colour for label, colour in kinds.items() if colour in colours}
    legend(ax, present, "fall of the logit without it", loc="center right", bbox_to_anchor=(0.94, 0.5))

    before, after = q["3.ablated.probability.before"], q["3.ablated.probability.after"]
    below.barh([1, 0], [before, after], color=[DARK, ORANGE], height=0.7)
    below.set_yticks([1, 0], ["whole model", f"head {q['3.largest_head']} taken out"])
    below.set_xlim(0, 1)
    below.grid(axis="x")
    below.set_xlabel(f"probability of {token(q['3.prediction'])}")
    return fig


def own_ranks(q):
    """Section 4: where a token stands among its own successors on the direct path."""
    ranks = dict(ending(q, "4.direct.", ".own_rank"))
    fig, ax = page(0.9 + 0.34 * len(ranks), "The place of a token among its own direct-path predictions")
    words, places = list(ranks), list(range(len(ranks)))[::-1]
    ax.hlines(places, 1, list(ranks.values()), color=PALE, linewidth=2)
    ax.scatter(list(ranks.values()), places, color=BLUE, zorder=3)
    for place, word in zip(places, words, strict=True):
        side = "right" if ranks[word] ** 2 > q["1.d_vocab"] else "left"  # of the text, away from the edge
        ax.annotate(f"{ranks[word]:,}", (ranks[word], place), (-8 if side == "right" else 8, 0), ha=side,
                    textcoords="offset points", va="center",
                    bbox=dict(facecolor="white", edgecolor="none", pad=1))  # fmt: skip
    first = [q[f"4.direct.{word}.top5"][0] for word in words]
    names = word_names(q, "4.direct.", words)
    ax.set_yticks(places, [f"{name} (first: {token(top)})" for name, top in zip(names, first, strict=True)])
    ax.set_ylim(-0.6, len(words) - 0.4)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda place, _: f"{place:,.0f}")
    ax.set_xlim(0.8, q["1.d_vocab"] * 1.3)
    ax.axvline(q["1.d_vocab"], color=DARK, linewidth=0.8, linestyle=":")
    ax.grid(axis="x")
    label = f"place of the token itself, 1 is the highest score (dotted: the last, {q['1.d_vocab']:,})"
    fig.supxlabel(label, fontsize=9)
    return fig


def virtual_weights(q):
    """Section 5: sizes of the virtual weights, and of random ones with as large matrices."""
    sizes, scores = rows(q, "5.virtual.norms.0."), rows(q, "5.composition.virtual.scores.0.")
    of_matrices = [
        s / c for size, score in zip(sizes, scores, strict=True) for s, c in zip(size, score, strict=True)
    ]
    mean = sum(of_matrices) / len(of_matrices)  # of ‖W_O‖ ‖W_V‖
    random, deviation = (mean * q[f"5.composition.virtual.random.{name}"] for name in ("mean", "deviation"))
    fig, ax = page(5.6, "Sizes of the virtual weights from each head of layer 0 to each of layer 1")
    image = head_map(ax, sizes, min(map(min, sizes)), max(map(max, sizes)), write=True)
    label = f"Frobenius norm of W_V W_O (random matrices as large: {random:.2f}, deviation {deviation:.2f})"
    fig.colorbar(image, ax=ax, location="bottom", aspect=40, shrink=0.7, label=label)
    return fig


def compositions(q):
    """Section 5: the paper's three kinds of composition beside random heads."""
    fig, axes = page(4, "Composition scores of the heads of layer 0 with those of layer 1", 1, 3)
    tables = {kind: rows(q, f"5.composition.{kind}.scores.0.") for kind in "QKV"}
    random, deviation = (q[f"5.composition.V.random.{name}"] for name in ("mean", "deviation"))
    limits = span([row for table in tables.values() for row in table], random, deviation)
    for ax, (kind, table) in zip(axes, tables.items(), strict=True):
        image = head_map(ax, table, *limits)
        ax.set_title(f"{kind}-composition")
        if ax is not axes[0]:
            ax.set_ylabel("")
    if "5.induction_with_previous_token.pair" in q:
        writer, reader = (int(head.split(".")[1]) for head in q["5.induction_with_previous_token.pair"])
        box(axes[1], reader, writer)
        axes[1].set_xlabel("reading head of layer 1\n(boxed: most induction,\nmost previous-token)")
    scale_bar(fig, image, list(axes), "‖W_1 W_2‖ / (‖W_1‖ ‖W_2‖)", "heads", random, deviation)
    return fig


# ---- Part 2 -------------------------------------------------------------------------------------------


def pattern(q):
    """Section 3: the attention pattern, with its tokens."""
    A, names = q["3.pattern"], [token(t) for t in q["3.tokens"]]
    fig, ax = page(6, f"Attention pattern of head {q['1.head']}")
    past = [
        [weight if src <= dst else math.nan for src, weight in enumerate(row)] for dst, row in enumerate(A)
    ]
    image = ax.imshow(past, vmin=0, vmax=1)
    if len(names) <= 16:
        for dst, row in enumerate(A):
            for src, weight in enumerate(row[: dst + 1]):
                write_cell(ax, src, dst, f"{weight:.2f}", weight)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    if len(names) > 16:  # a line each, however many
        ax.set_xticks(range(len(names)), names, rotation=90, ha="center", rotation_mode="default")
        ax.tick_params(labelsize=max(3, 9 * 22 / max(22, len(names))), length=2)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("source token, read from")
    ax.set_ylabel("destination token, written to")
    fig.colorbar(image, ax=ax, shrink=0.8, label="attention weight (a row sums to 1)")
    return fig


def interventions(q):
    """Section 3: what the weights say a head does to the predicted token, and what the model does."""
    others = token(q.get("3.swapped.prompt", ""))
    cases = {"ablated": "head taken out", "swapped": f"pattern kept, values of\n{others}"}
    cases = {id: label for id, label in cases.items() if f"3.{id}.logit_change" in q}
    kinds = {
        "logit_change": ("in the model", DARK),
        "logit_change.scale_held": ("in the model, layer norm's scale held", BLUE),
        "said_by_OV.stream": ("A × OV columns of the stream", ORANGE),
        "said_by_OV.tokens": ("A × OV columns of the tokens alone", SKY),
    }
    fig, ax = page(
        1.5 + 0.9 * len(cases), f"Head {q['1.head']} changed, and the logit of {token(q['3.prediction'])}"
    )
    for at, id in enumerate(cases):
        for i, (kind, (_, colour)) in enumerate(kinds.items()):
            value, place = q[f"3.{id}.{kind}"], -at + 0.3 - 0.2 * i
            ax.barh(place, value, height=0.18, color=colour)
            ax.annotate(f"{value:.2g}", (value, place), (-3 if value < 0 else 3, 0), va="center", fontsize=7,
                        ha="right" if value < 0 else "left", textcoords="offset points")  # fmt: skip
    ax.axvline(0, color=DARK, linewidth=0.8)
    ax.margins(x=0.12)
    ax.set_yticks([-at for at in range(len(cases))], cases.values())
    ax.grid(axis="x")
    ax.set_xlabel("change of the logit")
    legend(fig, dict(kinds.values()), loc="outside lower center", ncols=2)
    return fig


def singular_values(q):
    """Section 5: the cliff after d_head."""
    fig, axes = page(
        4.2, f"Singular values of W_OV and W_QK, head {q['1.head']} among all heads", 1, 2, sharey=True
    )
    for ax, name in zip(axes, ("W_OV", "W_QK"), strict=True):
        id, size = f"5.{name}.singular_values", q[f"5.{name}.shape"][0]
        for head, S in under(q, f"{id}.head.").items():
            chosen = head == q["1.head"]
            colour, width = (BLUE, 1.6) if chosen else ("#CCCCCC", 0.8)
            ax.plot(range(1, len(S) + 1), S, color=colour, linewidth=width, zorder=2 + chosen)
        S = q[f"{id}.head.{q['1.head']}"]
        alike = [place for run in q[f"{id}.nearly_equal"] for place in run]
        ax.scatter(
            alike, [S[place - 1] for place in alike], s=14, color="white", edgecolor=VERMILLION, zorder=4
        )
        after = q[f"{id}.after_d_head"]
        ax.plot([len(S), len(S) + 1], [S[-1], after], color=BLUE, linewidth=1.6)
        ax.scatter([len(S) + 1], [after], s=14, color=BLUE, zorder=4)
        rest = f"σ{len(S) + 1} = {after:.1e}\nσ{size} = {q[f'{id}.last']:.1e}"
        ax.annotate(rest, (len(S) + 1, after), (8, 0), textcoords="offset points", va="bottom")
        ax.set_xlim(0, 1.75 * len(S))
        ax.axvline(len(S) + 0.5, color=DARK, linewidth=0.8, linestyle="--")
        ax.annotate(f"d_head = {len(S)}", (len(S) + 0.5, 1), (6, -2), xycoords=("data", "axes fraction"),
                    textcoords="offset points", va="top")  # fmt: skip
        ax.set_title(name)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(power_of_ten)
        ax.grid(axis="y")
        ax.set_xlabel("place, largest first")
    axes[0].set_ylabel("singular value")
    marks = {f"head {q['1.head']}": BLUE, "other heads": "#CCCCCC"}
    near = any(q[f"5.{name}.singular_values.nearly_equal"] for name in ("W_OV", "W_QK"))
    legend(fig, marks, near and "within 1 % of a neighbour: no direction of its own", edge=VERMILLION,
           loc="outside lower center", ncols=3)  # fmt: skip
    return fig


def overlaps(q):
    """Section 5: reading and writing subspaces beside random ones."""
    scores, names = q["5.overlap.heads"], head_names(q, len(q["5.overlap.heads"]))
    mean, deviation = q["5.overlap.random_pairs.mean"], q["5.overlap.random_pairs.deviation"]
    fig, ax = page(3, "Overlap of the subspaces that each head's W_OV reads and writes")
    ax.axhspan(
        mean - 3 * deviation, mean + 3 * deviation, color=PALE, label="random pairs: mean ± 3 deviations"
    )
    ax.axhline(mean, color=GREY, linewidth=1)
    ax.scatter(range(len(scores)), scores, color=BLUE, zorder=3)
    ax.set_xticks(range(len(names)), names)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(*span([scores], mean, 4 * deviation / 3))
    ax.set_xlabel("head")
    ax.set_ylabel("mean squared cosine")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1))
    return fig


def own_tops(q):
    """Section 7: how much each head copies, by its own-top shares and by its eigenvalues."""
    id, layer = "7.two_strongest", q["1.head"].split(".")[0]
    names = [f"{layer}.{head}" for head in range(q["1.n_heads"])]
    pair = "\n+ ".join(q[f"{id}.heads"])
    fig, (ax, below) = page(5, "Copying by head: own top outputs, and eigenvalues of the whole circuits", 2)
    for i, (name, colour) in enumerate((("own_top_share", BLUE), ("own_top5_share", SKY))):
        shares = [*q[f"7.{name}.whole_vocabulary.heads"], q[f"{id}.{name}.whole_vocabulary"]]
        ax.bar([at + 0.38 * (i - 0.5) for at in range(len(shares))], shares, width=0.36, color=colour)
    circuits = {"OV": BLUE, "QK": ORANGE}
    circuits = {name: at for name, at in circuits.items() if f"7.eigenvalue_copying.{name}.heads" in q}
    for i, (name, colour) in enumerate(circuits.items()):
        copying = [*q[f"7.eigenvalue_copying.{name}.heads"], q[f"{id}.eigenvalue_copying.{name}"]]
        below.bar([at + 0.38 * (i - 0.5) for at in range(len(copying))], copying, width=0.36, color=colour)
    for axes in (ax, below):
        axes.set_xticks(range(len(names) + 1), [*names, pair])
        axes.axvline(len(names) - 0.5, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlim(-0.6, len(names) + 0.6)
        axes.grid(axis="y")
    ax.set_ylabel("share of all tokens")
    below.axhline(0, color=DARK, linewidth=0.8)
    below.set_ylim(-1.05, 1.05)
    below.set_ylabel("Σ Re λ / Σ |λ|")
    below.set_xlabel("head (right: the two that copy most, summed)")
    legend(ax, {"the top output is the token itself": BLUE, "it is among the top 5": SKY}, ncols=2,
           loc="lower right", bbox_to_anchor=(1, 1))  # fmt: skip
    labels = {f"{name} circuit": colour for name, colour in circuits.items()}
    legend(below, labels, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return fig


def ov_columns(q):
    """Section 7: the highest outputs of each word's OV column."""
    title = f"OV circuit of head {q['1.head']}: the outputs that reading a token raises most"
    bars = {word: (q[f"7.ov.{word}.top6"], values) for word, values in ending(q, "7.ov.", ".top6.values")}
    names = word_names(q, "7.ov.", bars)
    return word_bars(title, bars, names, "reading", "added to the logit, before the last layer norm", BLUE)


def qk_rows(q):
    """Section 7: the highest scores of each word's QK row, and the row's median."""
    title = f"QK circuit of head {q['1.head']}: the tokens that a token looks for most"
    bars = {word: (q[f"7.qk.{word}.top8"], values) for word, values in ending(q, "7.qk.", ".top8.values")}
    medians = {word: q[f"7.qk.{word}.median"] for word in bars}
    names = word_names(q, "7.qk.", bars)
    return word_bars(title, bars, names, "from", "score (dashed: the row's median)", ORANGE, medians)


def word_bars(title, bars, words, verb, unit, colour, medians=None):
    """A panel of labelled bars for each word, all on one scale; of many words, for the first."""
    if len(bars) > PANELS:
        title += f" (the first {PANELS} of {len(bars)})"
        bars = dict(list(bars.items())[:PANELS])
    n_rows, most = -(-len(bars) // 2), max(len(names) for names, _ in bars.values())
    fig, axes = page(0.9 + n_rows * (0.55 + 0.17 * most), title, n_rows, 2, sharex=True, squeeze=False)
    for ax in axes.flat[len(bars) :]:
        ax.set_axis_off()
    for i, (ax, (word, (names, values))) in enumerate(zip(axes.flat, bars.items(), strict=False)):
        ax.barh(range(len(values))[::-1], values, color=colour, height=0.75)
        ax.set_yticks(range(len(values))[::-1], [token(name) for name in names])
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"{verb} {words[i]}")
        ax.axvline(0, color=DARK, linewidth=0.8)
        ax.grid(axis="x")
        if medians:
            ax.axvline(medians[word], color=DARK, linestyle="--", linewidth=1)
        if i + 2 >= len(bars):  # no panel below
            ax.tick_params(axis="x", labelbottom=True)
    fig.supxlabel(unit, fontsize=9)
    return fig


# ---- what they share ----------------------------------------------------------------------------------


def page(height, title, n_rows=1, n_columns=1, **grid):
    from matplotlib.figure import Figure  # not pyplot: no windows, no global state

    fig = Figure(figsize=(WIDTH, height), layout="constrained")
    fig.suptitle(title, x=0.01, ha="left")
    return fig, fig.subplots(n_rows, n_columns, **grid)


def under(q, prefix):
    """The quantities whose id begins with `prefix`, by the rest of the id."""
    return {id[len(prefix) :]: value for id, value in q.items() if id.startswith(prefix)}


def rows(q, prefix):
    return list(under(q, prefix).values())


def ending(q, prefix, suffix):
    """(what stands between the two in the id, the value) of every quantity of such an id."""
    found = under(q, prefix).items()
    return [(id.removesuffix(suffix), value) for id, value in found if id.endswith(suffix)]


def word_names(q, prefix, keys):
    """The words that were asked for, in quotes; two of the same text are told apart by their ids."""
    names = [token(q[f"{prefix}{key}.word"]) for key in keys]
    return [
        f"{name} #{key.rsplit('#')[-1]}" if names.count(name) > 1 else name
        for name, key in zip(names, keys, strict=True)
    ]


def head_names(q, n):
    return [f"{i // q['1.n_heads']}.{i % q['1.n_heads']}" for i in range(n)]


def token(text):
    """A token in quotes, as the transcript shows it; what the font cannot draw is escaped."""
    from matplotlib.font_manager import fontManager, get_font

    font = get_font(fontManager.findfont("DejaVu Sans"))
    shown = "".join(c if font.get_char_index(ord(c)) else ascii(c)[1:-1] for c in repr(text)[1:-1])
    return f"‘{shown if len(shown) <= 24 else shown[:23] + '…'}’"


def piece_label(name):
    return f"head {name}" if name[0].isdigit() else name


def piece_colour(name):
    if name[0].isdigit():
        return SKY if name.startswith("0.") else BLUE
    return GREEN if name.endswith("embed") else GREY


def power_of_ten(value, _):
    return "10" + str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def legend(where, colours, hollow=None, edge=DARK, **place):
    """A patch for each label; `hollow` is the label of an open circle."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    if hollow:
        handles.append(
            Line2D([], [], marker="o", linestyle="", markersize=4.5, markerfacecolor="white",
                   markeredgecolor=edge, label=hollow)
        )  # fmt: skip
    where.legend(handles=handles, **place)


def span(table, random, deviation):
    """The colour scale's two ends, with the random band between them."""
    values = [value for row in table for value in row] + [random - 3 * deviation, random + 3 * deviation]
    margin = 0.06 * (max(values) - min(values))
    return min(values) - margin, max(values) + margin


def head_map(ax, table, low, high, write=False):
    """A map of pairs of heads, writers down and readers across."""
    image = ax.imshow(table, vmin=low, vmax=high)
    ax.set_xticks(range(len(table[0])), [f"1.{i}" for i in range(len(table[0]))])
    ax.set_yticks(range(len(table)), [f"0.{i}" for i in range(len(table))])
    ax.set_xlabel("reading head of layer 1")
    ax.set_ylabel("writing head of layer 0")
    ax.tick_params(length=0, labelsize=9 if write else 7)
    if write:
        for y, row in enumerate(table):
            for x, value in enumerate(row):
                write_cell(ax, x, y, f"{value:.2f}", (value - low) / (high - low))
    return image


def write_cell(ax, x, y, text, brightness):
    ax.text(
        x, y, text, ha="center", va="center", fontsize=7.5, color="black" if brightness > 0.55 else "white"
    )


def box(ax, x, y):
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=VERMILLION, linewidth=1.8))


def scale_bar(fig, image, axes, label, of, random, deviation):
    """A colour scale below, with the random baseline on it."""
    label += f" (lines: random {of}, mean ± 3 deviations)"
    bar = fig.colorbar(image, ax=axes, location="bottom", aspect=40, shrink=0.7, label=label)
    for value, width in ((random - 3 * deviation, 0.8), (random, 1.8), (random + 3 * deviation, 0.8)):
        bar.ax.axvline(value, color=VERMILLION, linewidth=width)


PICTURES = {
    "part1": {
        "3_logit_shares": (logit_shares, ["3.sum_of_shares", "3.ablated.probability.after"]),
        "4_own_ranks": (own_ranks, ["1.d_vocab"]),
        "5_virtual_weights": (virtual_weights, ["5.composition.virtual.random.mean"]),
        "5_compositions": (compositions, ["5.composition.V.random.mean"]),
    },
    "part2": {
        "3_pattern": (pattern, ["1.head", "3.pattern"]),
        "3_interventions": (interventions, ["1.head", "3.ablated.logit_change"]),
        "5_singular_values": (singular_values, ["1.head", "5.W_OV.shape", "5.W_QK.shape"]),
        "5_overlaps": (overlaps, ["1.n_heads", "5.overlap.random_pairs.mean"]),
        "7_own_tops": (own_tops, ["1.head", "1.n_heads", "7.two_strongest.heads"]),
        "7_ov_columns": (ov_columns, ["1.head", "7.full_circuit_shape"]),
        "7_qk_rows": (qk_rows, ["1.head", "7.full_circuit_shape"]),
    },
}
