"""`python -m circuits.compare`: what counts as a difference, and the exit status."""

import json

import pytest

from circuits import compare, published
from circuits.report import Report

BASE = {
    "part": "part1",
    "models": {"mini-2l": {"weights": "bundled"}},
    "quantities": {
        "3.final_norm": 21.37,  # printed with two decimals
        "4.direct.New.own_rank": 33197,  # a rank: within 33 places
        "4.own_top_share.mini-tied-1l": 0.988,  # gpt2's figure, three decimals
        "3.share.embed": 2.0,  # not printed: 1 part in 1,000
        "3.share.b_U": 0.01,  # not printed and small: 0.0005
        "3.prediction": "ley",
        "5.virtual.norms.0.0": [1.0, 2.0],
    },
    "noise": {"3.max_sum_error": {"measured": 1e-6, "limit": 2.4e-5}},
}


@pytest.fixture
def differing(tmp_path):
    """A function: change entries of BASE, and return compare's exit status and both files."""

    def write(name, results):
        (tmp_path / name).write_text(json.dumps(results), encoding="utf-8")
        return str(tmp_path / name)

    def compared(kind="quantities", **changes):
        new = BASE | {kind: BASE[kind] | {id: v for id, v in changes.items() if v is not None}}
        for id in (id for id, v in changes.items() if v is None):
            del new[kind][id]
        return compare.main([write("new.json", new), write("base.json", BASE)])

    return compared


@pytest.mark.parametrize(
    "id, near, far",
    [
        ("3.final_norm", 21.3749, 21.376),
        ("4.direct.New.own_rank", 33230, 33231),
        ("4.own_top_share.mini-tied-1l", 0.9884, 0.9886),
        ("3.share.embed", 2.0019, 2.0021),
        ("3.share.b_U", 0.0104, 0.0106),
        ("3.prediction", "ley", "leys"),
        ("5.virtual.norms.0.0", [1.0009, 2.0019], [1.0009, 2.003]),
        ("5.virtual.norms.0.0", [1.0, 2.0], [1.0, 2.0, 3.0]),
    ],
)
def test_a_quantity_may_move_within_its_tolerance(differing, capsys, id, near, far):
    assert differing(**{id: near}) == 0
    assert capsys.readouterr().out == ""
    assert differing(**{id: far}) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert f"new.json: {id}: " in line


@pytest.mark.parametrize("kind, id", [("quantities", "3.prediction"), ("noise", "3.max_sum_error")])
def test_a_quantity_that_only_one_has_differs(differing, capsys, kind, id):
    assert differing(kind, **{id: None}) == 1
    assert f"{id}: only in the baseline" in capsys.readouterr().out
    assert differing(kind, new={"measured": 0, "limit": 1}) == 1
    assert "new: only in the new results" in capsys.readouterr().out


def test_noise_must_stay_within_its_limit(differing):
    assert differing("noise", **{"3.max_sum_error": {"measured": 2e-5, "limit": 2.4e-5}}) == 0
    assert differing("noise", **{"3.max_sum_error": {"measured": 3e-5, "limit": 2.4e-5}}) == 1
    # nor does a limit of its own excuse it
    assert differing("noise", **{"3.max_sum_error": {"measured": 3e-5, "limit": 1e-3}}) == 1


def toy(folder, **changes):
    """A results file with the toy figures of Part 2 as printed, but for `changes`."""
    report = Report("part2_toy")
    for id, figure in published.load("part2_toy").items():
        report.record(id, changes.get(id, figure["published"]))
    report.write(folder)
    return str(folder / "part2_toy.json")


def test_against_the_published_figures(tmp_path, capsys):
    assert compare.main([toy(tmp_path)]) == 0
    assert compare.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert compare.main([toy(tmp_path, **{"qk.score": 7.0})]) == 1
    assert "qk.score: 7.0, printed 6.0 (exact)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "not a results file"),
        (json.dumps(BASE | {"part": "part2"}), "same part"),
    ],
)
def test_what_cannot_be_compared_is_2_and_one_line(tmp_path, capsys, text, says):
    new, base = tmp_path / "new.json", tmp_path / "base.json"
    new.write_text(json.dumps(BASE))
    if text is not None:
        base.write_text(text)
    assert compare.main([str(new), str(base)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot compare: ") and says in line


def test_bundled_models_are_not_judged_by_the_articles(tmp_path, capsys):
    (tmp_path / "new.json").write_text(json.dumps(BASE))
    assert compare.main([str(tmp_path / "new.json")]) == 2
    assert "mini-2l" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"quantities": []},
        {"models": None},
        {"noise": {"a": 5}},
        {"noise": {"a": {"measured": "x", "limit": 1}}},
        {"part": 1},
    ],
)
def test_an_edited_file_that_is_no_results_file_is_2(tmp_path, capsys, changed):
    for name, results in (("new.json", BASE | changed), ("base.json", BASE)):
        (tmp_path / name).write_text(json.dumps(results))
    assert compare.main([str(tmp_path / "new.json"), str(tmp_path / "base.json")]) == 2
    assert "not a results file" in capsys.readouterr().err


def test_a_file_nested_too_deep_is_2(tmp_path, capsys):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert compare.main([str(tmp_path / "deep.json")]) == 2
    assert capsys.readouterr().err.startswith("cannot compare: ")
