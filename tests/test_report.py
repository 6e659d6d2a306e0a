"""What a run says and keeps: numbers, verdicts, the two files, and a stdout that fails."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from circuits import report as module
from circuits.report import DIGITS, WIDTH, OutOfRange, Report, rounded

ROOT = Path(__file__).parent.parent
NAN, INF = math.nan, math.inf


def files(folder):
    """Name and bytes of every file in `folder`, temporary ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Numbers


@pytest.mark.parametrize(
    "value, kept",
    [
        (20.644961, 20.645),
        (0.0000123456789, 1.2346e-05),
        (-123456.7, -123460.0),
        (0.0, 0.0),
        (52094086, 52094086),  # a count keeps all its digits
        (True, True),
        ("ley", "ley"),
        ((1, 2.000001), [1, 2.0]),
        ([[0.333333333], ["a", 1]], [[0.33333], ["a", 1]]),
        ({"measured": 1.23456789, "n": 2}, {"measured": 1.2346, "n": 2}),
    ],
)
def test_floats_are_rounded_and_nothing_else(value, kept):
    assert rounded(value) == kept
    assert type(rounded(value)) is type(kept)


def test_zero_has_no_sign():
    assert str(rounded([-0.0, -1e-400])) == "[0.0, 0.0]"


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_rounding_moves_a_number_by_half_a_unit_of_its_last_digit_and_once(x):
    once = rounded(x)
    assert abs(once - x) <= 0.5001 * 10.0 ** (1 - DIGITS) * abs(x) or abs(x) < 1e-300
    assert rounded(once) == once


@pytest.mark.parametrize("bad", [NAN, INF, -INF, [1.0, NAN], {"a": [INF]}], ids=str)
def test_what_is_not_a_number_is_refused_and_nothing_is_said_or_kept(bad, capsys):
    report = Report("part1")
    with pytest.raises(OutOfRange, match=r"3\.logit: .*not a number") as raised:
        report.quantity("3.logit", "logit", bad)
    assert raised.value.status == 3
    with pytest.raises(OutOfRange, match="not a number"):
        report.record("3.error", bad)
    if isinstance(bad, float):
        with pytest.raises(OutOfRange, match="not a number"):
            report.small("3.error", "error", bad, 1e-6)
    assert (report.quantities, report.noise, report.transcript) == ({}, {}, [])
    assert capsys.readouterr().out == ""


def test_what_is_not_a_number_is_refused_by_write_too(tmp_path):
    report = Report("part1")
    report.models["m"] = {"size": NAN}
    with pytest.raises(ValueError):
        report.write(tmp_path)
    assert files(tmp_path) == {}


def measure(report, how):
    if how == "record":
        report.record("x", 1.0)
    elif how == "quantity":
        report.quantity("x", "label", 1.0)
    else:
        report.small("x", "label", 1e-7, 1e-6)


@pytest.mark.parametrize("second", ["record", "quantity", "small"])
@pytest.mark.parametrize("first", ["record", "quantity", "small"])
def test_an_id_is_measured_once(first, second):
    report = Report("part1")
    measure(report, first)
    with pytest.raises(ValueError, match="x was measured twice"):
        measure(report, second)


# The results file


def small_report():
    report = Report("part2")
    report.models["attn-only-1l"] = {"hub": "NeelNanda/x", "sha256": "00ff"}
    report.quantity("3.tokens", "prompt", ["<|BOS|>", " naïve", "東京", '"', "\\", "\n", "😀"])
    report.quantity("3.logit", "logit", 20.6449999)
    report.record("1.attn_only", True)
    report.record("3.shares", {"embed": 0.1, "n": 3})
    report.small("3.error", "error", 1.23456e-7, 1e-6)
    return report


SMALL_JSON = """\
{
 "part": "part2",
 "models": {
  "attn-only-1l": {"hub": "NeelNanda/x", "sha256": "00ff"}
 },
 "quantities": {
  "3.tokens": ["<|BOS|>", " naïve", "東京", "\\"", "\\\\", "\\n", "😀"],
  "3.logit": 20.645,
  "1.attn_only": true,
  "3.shares": {"embed": 0.1, "n": 3}
 },
 "noise": {
  "3.error": {"measured": 1.23e-07, "limit": 1e-06}
 }
}
"""


def test_results_file_is_utf8_a_quantity_a_line_in_the_order_measured(tmp_path):
    report = small_report()
    report.write(tmp_path / "new" / "folder")
    written = (tmp_path / "new" / "folder" / "part2.json").read_bytes()
    assert written.decode("utf-8") == SMALL_JSON
    assert json.loads(written) == {
        "part": "part2",
        "models": report.models,
        "quantities": report.quantities,
        "noise": report.noise,
    }


def test_an_empty_run_is_json_too(tmp_path):
    Report("part1").write(tmp_path)
    results = json.loads((tmp_path / "part1.json").read_text(encoding="utf-8"))
    assert results == {"part": "part1", "models": {}, "quantities": {}, "noise": {}}


def test_files_can_be_read_by_others(tmp_path):
    small_report().write(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_run_over_an_old_one_replaces_both_files(tmp_path):
    Report("part2").write(tmp_path)
    old = files(tmp_path)
    small_report().write(tmp_path)
    new = files(tmp_path)
    assert new.keys() == old.keys() == {"part2.json", "part2_stdout.txt"}
    assert all(new[name] != old[name] for name in old)


@pytest.mark.parametrize("failing", ["open", "replace", "chmod"])
def test_a_write_that_fails_leaves_the_last_good_file_and_no_litter(failing, tmp_path, monkeypatch):
    small_report().write(tmp_path)
    old = files(tmp_path)

    def fail(*args, **kwargs):
        raise OSError("the disk is full")

    if failing == "open":  # half of the text, then no more

        def half(handle, *args, **kwargs):
            os.write(handle, b"{")
            os.close(handle)
            fail()

        monkeypatch.setattr(module, "open", half, raising=False)
    else:
        monkeypatch.setattr(os, failing, fail)
    report = Report("part2")
    report.record("x", 1)
    with pytest.raises(OSError, match="the disk is full"):
        report.write(tmp_path)
    assert files(tmp_path) == old


@pytest.mark.parametrize("unwritable", [object(), NAN, b"bytes"], ids=["object", "nan", "bytes"])
def test_a_value_that_json_cannot_hold_leaves_the_last_good_file(unwritable, tmp_path):
    small_report().write(tmp_path)
    old = files(tmp_path)
    report = Report("part2")
    report.quantities["x"] = unwritable
    with pytest.raises((TypeError, ValueError)):
        report.write(tmp_path)
    assert files(tmp_path) == old


def test_text_that_utf8_cannot_hold_leaves_the_last_good_file(tmp_path):
    small_report().write(tmp_path)
    old = files(tmp_path)
    report = Report("part2")
    report.record("x", "\udcff")
    with pytest.raises(UnicodeEncodeError):
        report.write(tmp_path)
    assert files(tmp_path) == old


# The transcript

FIGURES = {
    figure["id"]: figure
    for figure in [
        {"id": "same", "published": 20.645, "check": "decimals", "decimals": 3},
        {"id": "near", "published": 0.61, "check": "decimals", "decimals": 2},
        {"id": "off", "published": 33, "check": "exact"},
        {"id": "list", "published": [0.65, 0.33], "check": "decimals", "decimals": 2},
        {"id": "either", "published": 0.72, "check": "decimals", "decimals": 2, "or_id": "other"},
        {"id": "noise", "published": 1e-06, "check": "at_most", "limit": 1e-05},
        {"id": "never", "published": 1, "check": "exact"},
    ]
}


def judged(**changes):
    values = {"same": 20.645, "near": 0.6149, "off": 33, "list": [0.651, 0.329], "either": 0.9, "other": 0.72}
    values |= {"noise": 2e-6, "never": 1} | changes
    report = Report("part1", FIGURES)
    for id, value in values.items():
        if id == "noise":
            report.small(id, f"its {id}", value, 1e-5)
        elif value is not None:
            report.quantity(id, f"its {id}", value)
    return report, report.conclude()


def line_of(report, label):
    (index,) = (i for i, line in enumerate(report.transcript) if line.startswith(f"  {label} "))
    return " ".join(" ".join(report.transcript[index : index + 2]).split())


def test_a_verdict_beside_every_figure():
    report, well = judged()
    assert well
    assert line_of(report, "its same").startswith("its same 20.645 as printed ±0.0005 match")
    assert line_of(report, "its near").startswith("its near 0.6149 printed 0.61 ±0.005 match")
    assert line_of(report, "its off").startswith("its off 33 as printed exact match")
    assert line_of(report, "its list") == "its list [0.651, 0.329] printed [0.65, 0.33] ±0.005 match"
    assert line_of(report, "its either").startswith("its either 0.9 printed 0.72 ±0.005 see below")
    assert line_of(report, "its noise").startswith("its noise 2e-06 printed 1e-06 at most 1e-05 match")
    # What is not printed in the article stands alone.
    assert "  its other                                    0.72" in report.transcript
    identities, either, figures = report.transcript[-3:]
    assert identities == "  1 identities: 1 hold, 0 do not"
    assert either.split() == ["match", "other", "0.72", "printed", "0.72"]  # the reading that matches
    assert figures == "  7 printed figures: 7 match, 0 do not"


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"off": 34}, "MISMATCH off 34 printed 33"),
        ({"same": 20.646}, "MISMATCH same 20.646 printed 20.645"),
        ({"list": [0.651, 0.4]}, "MISMATCH list [0.651, 0.4] printed [0.65, 0.33]"),
        ({"other": 0.8}, "MISMATCH either 0.9 printed 0.72"),
        ({"never": None}, "not measured never None printed 1"),
    ],
)
def test_a_missed_figure_is_named_and_counted(changes, says):
    report, well = judged(**changes)
    assert not well
    assert report.transcript[-1] == "  7 printed figures: 6 match, 1 do not"
    assert any(" ".join(line.split()).startswith(says) for line in report.transcript[-3:])


def test_noise_over_its_limit_is_named_and_counted():
    report, well = judged(noise=2e-5)
    assert not well
    text = "\n".join(report.transcript)
    assert "  1 identities: 0 hold, 1 do not\n    FAILS     noise: measured 2e-05 limit 1e-05\n" in text
    assert "  7 printed figures: 6 match, 1 do not" in text


@pytest.mark.parametrize("value, word, well", [(1e-6, "holds", True), (1.01e-6, "FAILS", False)])
def test_identities_are_judged_without_printed_figures(value, word, well):
    report = Report("part1")
    report.small("x", "error", value, 1e-6)
    assert report.transcript[-1].endswith(f"  limit 1e-06  {word}")
    report.quantity("3.logit", "logit", 5.0)
    assert report.transcript[-1].split() == ["logit", "5.0"]
    assert report.conclude() is well
    assert "were not judged here" in report.transcript[-1]


def test_what_was_kept_is_what_is_judged_and_printed():
    figure = {"id": "x", "published": 0.5, "check": "decimals", "decimals": 6}
    report = Report("part1", {"x": figure})
    report.quantity("x", "label", 0.500000001)
    assert report.quantities == {"x": 0.5}
    assert report.transcript[-1].split() == ["label", "0.5", "as", "printed", "±5e-07", "match"]


WORDS = st.text(st.characters(categories=["L", "N", "P"], include_characters=" "), max_size=20)
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-(10**9), 10**9)
VALUES = st.lists(WORDS, max_size=20) | st.lists(NUMBERS, max_size=40) | NUMBERS | WORDS


@given(label=st.text("abc W_VOᵀ⊗", max_size=44), value=VALUES, printed=VALUES | st.none())
def test_no_line_is_wider_than_the_page_and_no_element_is_broken(label, value, printed):
    figure = {"id": "x", "published": printed, "check": "exact"}
    report = Report("part1", {} if printed is None else {"x": figure})
    report.quantity("x", label, value)
    assert max(map(len, report.transcript)) <= WIDTH
    assert not any(line != line.rstrip() or "\n" in line for line in report.transcript)
    kept = report.quantities["x"]
    for element in kept if isinstance(kept, list) else [kept]:
        assert any(repr(element) in line for line in report.transcript)


def test_a_section_is_a_line_across_the_page():
    report = Report("part1")
    report.section(3, "The residual stream")
    assert report.transcript == ["", "== 3. The residual stream " + "=" * 74]
    assert len(report.transcript[1]) == WIDTH


# Where stdout goes


def test_transcript_file_is_what_was_printed(tmp_path, capsys):
    report = small_report()
    report.section(1, "Wᵀ ⊗ 東京")
    report.say()
    report.conclude()
    report.write(tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "part2_stdout.txt").read_bytes() == printed.encode("utf-8")
    assert printed.endswith("not judged here.\n")


def toy(folder, **environment):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "circuits_part2_toy.py"), "--out", str(folder)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_who_closes_the_pipe_does_not_end_the_run(tmp_path):
    process = toy(tmp_path)
    process.stdout.close()
    error = process.stderr.read().decode()
    assert (process.wait(), error.count("\n")) == (0, 1), error
    transcript = (tmp_path / "part2_toy_stdout.txt").read_text(encoding="utf-8")
    assert transcript.endswith("match, 0 do not\n")


def test_a_terminal_without_the_letters_does_not_end_the_run(tmp_path):
    process = toy(tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C")
    output, error = process.communicate()
    assert process.returncode == 0, error
    text = output.decode("ascii")
    transcript = (tmp_path / "part2_toy_stdout.txt").read_text(encoding="utf-8")
    assert "\\u2297" in text and "⊗" in transcript
    assert transcript.encode("ascii", "backslashreplace").decode() == text
