"""The figures the articles print, and whether a measured one came out as printed.

A figure in `published/*.json` names its own check:

  exact      the same value
  decimals   rounds to the printed number: at most half a unit of its last decimal away
  relative   within `tolerance` times the printed number
  rank       a place in an order: within 0.1 %, at least one place
  between    inside the two printed bounds
  at_most    rounding noise: no larger than `limit`

A list is checked element by element. `or_id` names a second quantity that may match instead.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def load(part: str) -> dict[str, dict]:
    """The published figures of a part ("part1", "part2", "part1_toy", "part2_toy"), by id."""
    text = (Path(__file__).parent / "published" / f"{part}.json").read_text(encoding="utf-8")
    return {figure["id"]: figure for figure in json.loads(text)}


def agrees(measured: Any, expected: Any, how: dict) -> bool:
    """Whether `measured` is `expected` under the check that `how` names. A NaN never agrees."""
    check = how["check"]
    if isinstance(expected, list) and check != "between":
        same_length = isinstance(measured, list) and len(measured) == len(expected)
        return same_length and all(agrees(m, e, how) for m, e in zip(measured, expected, strict=True))
    if check == "exact":
        return measured == expected and isinstance(measured, bool) == isinstance(expected, bool)
    if isinstance(measured, bool) or not isinstance(measured, int | float):
        return False
    if check == "between":
        return expected[0] <= measured <= expected[1]
    if check == "at_most":
        return abs(measured) <= how["limit"]
    return abs(measured - expected) <= allowance(expected, how)


def allowance(expected: int | float, how: dict) -> int | float:
    """How far from `expected` a number may lie under "decimals", "relative" or "rank"."""
    if how["check"] == "decimals":
        # One part in a hundred more than half a unit: float32 is not asked to round a tie alike.
        return 0.505 * 10.0 ** -how["decimals"]
    if how["check"] == "relative":
        return how["tolerance"] * abs(expected)
    return max(1, 0.001 * expected)


def tolerance(figure: dict) -> str:
    """A figure's tolerance in a few characters, for a transcript's margin."""
    return {
        "exact": lambda: "exact",
        "between": lambda: "between",
        "at_most": lambda: f"at most {figure['limit']:.2g}",
        "decimals": lambda: f"±{0.5 * 10.0 ** -figure['decimals']:g}",
        "relative": lambda: f"±{100 * figure['tolerance']:g} %",
        "rank": lambda: f"±{max(1, int(0.001 * figure['published']))}",
    }[figure["check"]]()


@dataclass(frozen=True)
class Verdict:
    """What became of one published figure: "match", "MISMATCH" or "not measured"."""

    id: str
    figure: dict
    measured: Any
    word: str


def judge(figure: dict, measured: dict[str, Any]) -> Verdict:
    """The verdict on `figure` from all the measured quantities, by id."""
    for name in (figure["id"], figure.get("or_id")):
        if name in measured and agrees(measured[name], figure["published"], figure):
            return Verdict(name, figure, measured[name], "match")
    if figure["id"] not in measured:
        return Verdict(figure["id"], figure, None, "not measured")
    return Verdict(figure["id"], figure, measured[figure["id"]], "MISMATCH")
