"""Each check at its edge and just beyond it, and the form of the four files of published figures."""

import json
import math
from pathlib import Path

import pytest

from circuits import published

FOLDER = Path(published.__file__).parent / "published"
NAN, INF = math.nan, math.inf


def figure(check, printed, **extra):
    return {"id": "x", "published": printed, "check": check, **extra}


COUNT = figure("exact", 20)
FLAG = figure("exact", True)
WORDS = figure("exact", [" tea", " Tea"])
TABLE = figure("exact", {"cat": 2, "dog": 1})
THREE = figure("decimals", 0.61, decimals=3)
ONE = figure("decimals", -0.1, decimals=1)
LIST = figure("decimals", [0.65, 0.33], decimals=2)
SEEDED = figure("relative", 4.0, tolerance=0.5)
NEGATIVE = figure("relative", -4.0, tolerance=0.5)
NEAR = figure("rank", 33)  # one place
FAR = figure("rank", 33197)  # 33 places
SHARE = figure("between", [0.4, 0.5])
NOISE = figure("at_most", 2.4e-6, limit=2.4e-5)

AGREE = [
    (COUNT, 20),
    (COUNT, 20.0),
    (FLAG, True),
    (WORDS, [" tea", " Tea"]),
    (TABLE, {"dog": 1, "cat": 2}),
    (THREE, 0.61),
    (THREE, 0.6105),  # a tie, whichever way it rounds
    (THREE, 0.610504),
    (THREE, 0.609496),
    (ONE, -0.1504),
    (ONE, -0.0496),
    (LIST, [0.65504, 0.32496]),
    (SEEDED, 2.0),
    (SEEDED, 6.0),
    (NEGATIVE, -2.0),
    (NEGATIVE, -6.0),
    (NEAR, 32),
    (NEAR, 34),
    (FAR, 33230),
    (FAR, 33164),
    (SHARE, 0.4),
    (SHARE, 0.5),
    (NOISE, 0.0),
    (NOISE, 2.4e-5),
]
DISAGREE = [
    (COUNT, 21),
    (COUNT, "20"),
    (COUNT, None),
    (figure("exact", 1), True),
    (FLAG, 1),
    (FLAG, False),
    (WORDS, [" Tea", " tea"]),
    (WORDS, [" tea"]),
    (WORDS, [" tea", " Tea", " teac"]),
    (TABLE, {"cat": 2}),
    (TABLE, {"cat": 2, "dog": 1, "the": 0}),
    (THREE, 0.610506),
    (THREE, 0.609494),
    (THREE, "0.61"),
    (THREE, None),
    (THREE, [0.61]),
    (ONE, -0.1506),
    (ONE, -0.0494),
    (ONE, 0.1),
    (LIST, [0.65504, 0.32494]),
    (LIST, [0.65]),
    (LIST, [0.65, 0.33, 0.0]),
    (LIST, 0.65),
    (SEEDED, 1.999),
    (SEEDED, 6.001),
    (NEGATIVE, -1.999),
    (NEGATIVE, 4.0),
    (NEAR, 31),
    (NEAR, 35),
    (FAR, 33231),
    (FAR, 33163),
    (SHARE, 0.399),
    (SHARE, 0.501),
    (NOISE, 2.401e-5),
    (NOISE, None),
    (NOISE, -2.401e-5),
    (NOISE, -INF),
    (SHARE, None),
    (SHARE, "0.45"),
    (SHARE, [0.45]),
    (SHARE, True),
    (figure("exact", [1]), [True]),
    (figure("exact", [NAN]), [NAN]),
    (figure("decimals", 1.0, decimals=1), True),
    (figure("rank", 1), True),
]
NUMBERS = [COUNT, THREE, ONE, SEEDED, NEGATIVE, NEAR, FAR, SHARE, NOISE]


@pytest.mark.parametrize("how, measured", AGREE)
def test_agrees_up_to_the_edge(how, measured):
    assert published.agrees(measured, how["published"], how)


@pytest.mark.parametrize("how, measured", DISAGREE)
def test_disagrees_beyond_it(how, measured):
    assert not published.agrees(measured, how["published"], how)


@pytest.mark.parametrize("how", NUMBERS, ids=lambda how: how["check"])
def test_nan_and_infinity_never_agree(how):
    assert not published.agrees(NAN, how["published"], how)
    assert not published.agrees(INF, how["published"], how)


def test_nan_in_a_list_never_agrees():
    assert not published.agrees([0.65, NAN], LIST["published"], LIST)
    assert not published.agrees([NAN, " Tea"], WORDS["published"], WORDS)


@pytest.mark.parametrize(
    "how, says",
    [
        (COUNT, "exact"),
        (THREE, "±0.0005"),
        (ONE, "±0.05"),
        (SEEDED, "±50 %"),
        (figure("relative", 0.218, tolerance=0.03), "±3 %"),
        (NEAR, "±1"),
        (FAR, "±33"),
        (SHARE, "between"),
        (NOISE, "at most 2.4e-05"),
    ],
)
def test_tolerance_in_words(how, says):
    assert published.tolerance(how) == says


EITHER = figure("decimals", 0.72, decimals=2, or_id="y")


@pytest.mark.parametrize(
    "how, measured, id, value, word",
    [
        (THREE, {"x": 0.6104}, "x", 0.6104, "match"),
        (THREE, {"x": 0.62}, "x", 0.62, "MISMATCH"),
        (THREE, {"y": 0.61}, "x", None, "not measured"),
        (THREE, {}, "x", None, "not measured"),
        (EITHER, {"x": 0.72, "y": 0.9}, "x", 0.72, "match"),
        (EITHER, {"x": 0.9, "y": 0.72}, "y", 0.72, "match"),
        (EITHER, {"x": 0.9, "y": 0.8}, "x", 0.9, "MISMATCH"),
        (EITHER, {"x": 0.9}, "x", 0.9, "MISMATCH"),
        (EITHER, {"y": 0.8}, "x", None, "not measured"),
        (figure("exact", 0), {"x": 0}, "x", 0, "match"),
    ],
)
def test_judge(how, measured, id, value, word):
    assert published.judge(how, measured) == published.Verdict(id, how, measured=value, word=word)


PARTS = {"part1": 76, "part2": 91, "part1_toy": 33, "part2_toy": 23}
FORM = {  # what a figure needs beside id, published and check
    "exact": lambda f: True,
    "decimals": lambda f: type(f["decimals"]) is int and 1 <= f["decimals"] <= 6,
    "relative": lambda f: 0 < f["tolerance"] <= 0.5,
    "rank": lambda f: type(f["published"]) is int and f["published"] >= 1,
    "between": lambda f: f["published"][0] < f["published"][1],
    "at_most": lambda f: 0 <= f["published"] <= f["limit"],
}
FIELDS = {"id", "published", "check", "decimals", "tolerance", "limit"}
FIELDS |= {"model", "token", "note", "derived", "or_id"}


@pytest.fixture(params=PARTS)
def figures(request):
    """(part, its figures as the file lists them)."""
    return request.param, json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))


def test_no_other_file():
    assert {path.stem for path in FOLDER.iterdir()} == PARTS.keys()


def test_ids_are_unique_and_none_was_dropped(figures):
    part, entries = figures
    ids = [entry["id"] for entry in entries]
    assert len(set(ids)) == len(ids) == PARTS[part]
    assert list(published.load(part).items()) == [(entry["id"], entry) for entry in entries]


def test_every_figure_has_a_known_check_and_what_it_needs(figures):
    _, entries = figures
    for entry in entries:
        assert entry.keys() <= FIELDS, entry
        assert FORM[entry["check"]](entry), entry
        assert published.tolerance(entry)


def test_every_figure_agrees_with_itself(figures):
    _, entries = figures
    for entry in entries:
        value = entry["published"]
        if entry["check"] == "between":
            value = sum(value) / 2
        assert published.judge(entry, {entry["id"]: value}).word == "match", entry


def test_no_figure_is_printed_with_more_decimals_than_are_checked(figures):
    _, entries = figures
    for entry in entries:
        if entry["check"] == "decimals":
            values = entry["published"] if isinstance(entry["published"], list) else [entry["published"]]
            assert [round(value, entry["decimals"]) for value in values] == values, entry


def test_a_second_reading_is_not_itself_printed(figures):
    _, entries = figures
    ids = {entry["id"] for entry in entries}
    assert not [entry for entry in entries if entry.get("or_id") in ids]
