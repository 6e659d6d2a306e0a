"""Pictures from recorded quantities alone: which there are, that they repeat, and what they show."""

import builtins
import itertools
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from circuits import Fault, figures

ROOT = Path(__file__).parent.parent


def quantities(part):
    """Made-up quantities of every id that a picture of `part` takes."""
    wave = [i / 20 for i in range(8)]
    if part == "part1":
        shares = {"1.0": 2.0, "0.1": -0.5, "embed": 0.25, "pos_embed": 0.1, "b_O.0": 0.05, "b_U": 0.1}
        q = {f"3.share.{name}": share for name, share in shares.items()}
        q |= {f"3.removal.scale_moves.{name}": 0.7 * share for name, share in shares.items() if name != "b_U"}
        q |= {"3.prediction": "ley", "3.sum_of_shares": 2.0, "3.largest_head": "1.0"}
        q |= {"3.ablated.probability.before": 0.9, "3.ablated.probability.after": 0.2}
        q |= {
            "1.d_vocab": 8192,
            "4.direct.New.word": " New",
            "4.direct.New.own_rank": 33,
            "4.direct.New.top5": [" York", "a", "b", "c", "d"],
        }
        q |= {f"5.virtual.norms.0.{i}": [1 + x for x in wave] for i in range(8)}
        for kind in ("virtual", "V", "K", "Q"):
            q |= {f"5.composition.{kind}.random.mean": 0.06, f"5.composition.{kind}.random.deviation": 0.001}
            q |= {f"5.composition.{kind}.scores.0.{i}": [0.05 + x / 9 for x in wave] for i in range(8)}
        return q | {"5.induction_with_previous_token.pair": ["0.2", "1.5"]}
    q = {"1.head": "0.3", "1.n_heads": 8, "3.tokens": ["<|BOS|>", " $x$", "\ud7fb"], "3.prediction": " tea"}
    q |= {"3.pattern": [[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]], "7.full_circuit_shape": [9, 9]}
    for id in ("ablated", "swapped"):
        q |= {f"3.{id}.logit_change{kind}": 0.3 for kind in ("", ".scale_held")}
        q |= {f"3.{id}.said_by_OV.{kind}": -0.3 for kind in ("stream", "tokens")}
    for name in ("W_OV", "W_QK"):
        id = f"5.{name}.singular_values"
        q |= {f"{id}.head.0.{i}": [3.0 + i, 2.0, 1.99, 1.0] for i in range(8)}
        q |= {f"5.{name}.shape": [16, 16], f"{id}.nearly_equal": [[2, 3]], f"{id}.after_d_head": 1e-7}
        q |= {f"{id}.last": 1e-10}
    q |= {
        "5.overlap.heads": wave,
        "5.overlap.random_pairs.mean": 0.12,
        "5.overlap.random_pairs.deviation": 0.01,
    }
    q |= {"7.two_strongest.heads": ["0.1", "0.3"]}
    for name in ("own_top_share", "own_top5_share"):
        q |= {f"7.{name}.whole_vocabulary.heads": wave, f"7.two_strongest.{name}.whole_vocabulary": 0.5}
    for name in ("OV", "QK"):
        q |= {f"7.eigenvalue_copying.{name}.heads": wave, f"7.two_strongest.eigenvalue_copying.{name}": -0.5}
    for id, top in (("7.ov.tea", 6), ("7.ov.Paris", 6), ("7.qk.in", 8)):
        q |= {
            f"{id}.word": " " + id.split(".")[-1],
            f"{id}.top{top}": [f" w{i}" for i in range(top)],
            f"{id}.top{top}.values": [2.0 - i for i in range(top)],
        }
    return q | {"7.qk.in.median": 0.1}


@pytest.fixture(scope="module", params=["part1", "part2"])
def drawn(request, tmp_path_factory):
    """(part, folder, the files' names as `draw` gives them)"""
    folder = tmp_path_factory.mktemp("drawn")
    return request.param, folder, figures.draw(request.param, quantities(request.param), folder)


def test_every_picture_is_drawn_twice_and_nothing_else(drawn):
    part, folder, names = drawn
    assert names == [f"{part}_{name}.{kind}" for name in figures.PICTURES[part] for kind in ("png", "svg")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_two_runs_draw_the_same_bytes(drawn, tmp_path):
    part, folder, names = drawn
    assert figures.draw(part, quantities(part), tmp_path) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_they_have_an_article_s_width_and_no_date(drawn):
    _, folder, names = drawn
    for name in names:
        content = (folder / name).read_bytes()
        assert not re.search(rb"<dc:date>|Software|tIME", content), name
        if name.endswith("png"):
            assert struct.unpack(">I", content[16:20])[0] == 7 * 150, name
        else:
            assert b'width="504pt"' in content and b"<text" not in content, name


@pytest.mark.parametrize("part", figures.PICTURES)
def test_what_was_not_measured_is_left_out(part, tmp_path):
    q = {id: value for id, value in quantities(part).items() if not id.startswith("3.")}
    names = figures.draw(part, q, tmp_path)
    assert names == [
        f"{part}_{name}.{kind}"
        for name in figures.PICTURES[part]
        if name[0] != "3"
        for kind in ("png", "svg")
    ]
    assert figures.draw(part, {}, tmp_path / "none") == []


def test_the_style_of_a_caller_is_neither_used_nor_changed(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        figures.draw("part2", quantities("part2"), tmp_path / "other")
        assert matplotlib.rcParams["font.size"] == 30
    figures.draw("part2", quantities("part2"), tmp_path / "plain")
    name = "part2_5_overlaps.svg"
    assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def texts(fig):
    from matplotlib.text import Text

    return [text.get_text() for text in fig.findobj(Text) if text.get_text()]


def test_bars_are_the_shares_in_order_and_the_sum():
    fig = figures.logit_shares(quantities("part1"))
    ax = fig.axes[0]
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [-0.5, 0.05, 0.1, 0.1, 0.25, 2.0, 2.0]  # the sum last
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "sum of all", "head 0.1", "b_O.0", "pos_embed", "b_U", "embed", "head 1.0"
    ]  # fmt: skip
    falls = ax.collections[0].get_offsets().tolist()
    assert falls[-1] == pytest.approx([1.4, 6])
    assert len(falls) == 5  # b_U is no piece of the stream


def test_the_pattern_shows_every_weight_of_the_past_and_every_token():
    shown = texts(figures.pattern(quantities("part2")))
    assert [text for text in shown if re.fullmatch(r"\d\.\d\d", text)] == [
        "1.00", "0.50", "0.50", "0.20", "0.20", "0.60"
    ]  # fmt: skip
    assert "‘<|BOS|>’" in shown and "‘ $x$’" in shown


def test_copying_is_drawn_under_the_heads_of_its_layer():
    """Also where the model has other layers, whose heads are among the overlaps; and without a QK circuit."""
    q = quantities("part2") | {"1.head": "1.2", "5.overlap.heads": [0.1] * 16}
    q["7.two_strongest.heads"] = ["1.1", "1.3"]
    for id in [id for id in q if ".QK" in id]:
        del q[id]
    above, below = figures.own_tops(q).axes
    for ax, bars in ((above, 18), (below, 9)):
        assert [t.get_text() for t in ax.get_xticklabels()] == [*(f"1.{i}" for i in range(8)), "1.1\n+ 1.3"]
        assert len(ax.patches) == bars and ax.get_xlim()[1] > 8


def test_words_are_named_as_they_are_and_by_id_where_two_look_alike():
    words = {"self#4": "self", "self#9": " self", "é#7": "�#7", "é#8": "�#8", "x#1": "x", "x#2": "x"}
    q = {f"7.ov.{key}.word": word for key, word in words.items()}
    named = figures.word_names(q, "7.ov.", list(words))
    assert named == ["‘self’", "‘ self’", "‘�#7’", "‘�#8’", "‘x’ #1", "‘x’ #2"]


def test_of_many_words_the_first_are_drawn():
    q = quantities("part2")
    for i in range(20):
        word = {f"7.ov.w{i}.word": f"w{i}", f"7.ov.w{i}.top6": ["a"] * 6, f"7.ov.w{i}.top6.values": [1.0] * 6}
        q |= word
    shown = texts(figures.ov_columns(q))
    assert any("(the first 12 of 22)" in text for text in shown)
    assert "reading ‘w9’" in shown and "reading ‘w10’" not in shown


def test_a_token_that_the_font_cannot_draw_is_escaped():
    assert figures.token(" tea") == "‘ tea’"
    assert figures.token("\n") == "‘\\n’"
    assert figures.token("猫") == "‘\\u732b’"
    assert figures.token("é") == "‘é’"
    assert len(figures.token("x" * 100)) == 26


def test_the_random_band_of_the_overlaps():
    ax = figures.overlaps(quantities("part2")).axes[0]
    band = ax.patches[0]
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.09, 0.15))


@pytest.mark.parametrize("part", figures.PICTURES)
def test_no_text_reaches_beyond_the_page(part):
    for picture, _ in figures.PICTURES[part].values():
        fig = picture(quantities(part))
        fig.draw_without_rendering()
        drawn, page = fig.get_tightbbox(), fig.get_size_inches()
        assert 0 <= drawn.x0 and drawn.x1 <= page[0] and 0 <= drawn.y0 and drawn.y1 <= page[1]


def test_a_long_prompt_s_tokens_do_not_overlap():
    q, n = quantities("part2"), 60
    q |= {
        "3.tokens": [" strength"] * n,
        "3.pattern": [[1 / (i + 1)] * (i + 1) + [0] * (n - i - 1) for i in range(n)],
    }
    fig = figures.pattern(q)
    fig.draw_without_rendering()
    for labels, side in ((fig.axes[0].get_xticklabels(), "x"), (fig.axes[0].get_yticklabels(), "y")):
        boxes = sorted(
            (getattr(b, f"{side}0"), getattr(b, f"{side}1")) for b in (t.get_window_extent() for t in labels)
        )
        assert len(boxes) == n and all(a[1] <= b[0] for a, b in itertools.pairwise(boxes))


def test_without_matplotlib_it_is_one_line(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Fault, match=r'^--figures needs matplotlib: pip install -e "\.\[figures\]"$'):
        figures.check()


def test_a_matplotlib_that_does_not_work_is_one_line(monkeypatch):
    monkeypatch.setattr(
        builtins, "__import__", lambda *a, **k: (_ for _ in ()).throw(ValueError("Key backend"))
    )
    with pytest.raises(Fault, match="needs a matplotlib that works: Key backend"):
        figures.check()


def test_without_matplotlib_a_run_ends_before_its_work(tmp_path):
    """Status 2 and one line; nothing was measured or written."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    command = [sys.executable, str(ROOT / "circuits_part1.py"), "--models", "mini", "--figures"]
    process = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        'circuits_part1.py: --figures needs matplotlib: pip install -e ".[figures]"'
    ]
    assert process.stdout == "" and not (tmp_path / "out").exists()


@pytest.fixture(scope="module", params=["part1", "part2"])
def mini(request, tmp_path_factory):
    """(part, folder, the finished process) of a run on the bundled models with `--figures`."""
    folder = tmp_path_factory.mktemp("figures")
    command = [sys.executable, str(ROOT / f"circuits_{request.param}.py"), "--models", "mini", "--figures"]
    process = subprocess.run([*command, "--out", str(folder)], capture_output=True, encoding="utf-8")
    return request.param, folder / "mini", process


def test_a_run_draws_them_all_and_lists_them(mini):
    part, folder, process = mini
    assert process.returncode == 0, process.stderr
    names = [f"{part}_{name}.{kind}" for name in figures.PICTURES[part] for kind in ("png", "svg")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*names, f"{part}.json", f"{part}_stdout.txt"]
    )
    listed = re.findall(rf"^  ({part}_\w+\.(?:png|svg))$", process.stdout, re.MULTILINE)
    assert listed == names


def test_a_run_s_pictures_come_from_its_results_file_alone(mini, tmp_path):
    part, folder, _ = mini
    results = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    measured = results["quantities"] | {id: entry["measured"] for id, entry in results["noise"].items()}
    for name in figures.draw(part, measured, tmp_path):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
