"""`python -m circuits.compare NEW [BASELINE]`: what differs, beyond the documented tolerances.

NEW and BASELINE are results files, or folders of them (then every file of NEW is compared with the
one of the same name in BASELINE). Without BASELINE, NEW is compared with the published figures.

Against a baseline a quantity that the articles print keeps its own tolerance, around the baseline's
value, whichever models were measured; any other number may move by 1 part in 1,000, or by 0.0005 where
that is more; all else must be equal. Noise must stay within its limit.

Exit status: 0 nothing differs, 1 a figure missed, 2 cannot compare.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from circuits import Fault, published
from circuits.hub import note
from circuits.report import say, show

# The role each bundled model plays, so that an id with its name finds the figure it stands for
STANDS_FOR = {"mini-tied-1l": "gpt2", "mini-1l": "attn-only-1l", "mini-2l": "attn-only-2l"}
UNPRINTED = {"relative": 1e-3, "absolute": 5e-4}


class CannotCompare(Fault):
    """One line: which file, and what is wrong with it."""


def load(path: Path) -> dict:
    """A results file. Raises CannotCompare where it is missing or no results file."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CannotCompare(f"{path}: {getattr(error, 'strerror', None) or f'not JSON ({error})'}") from error
    if not isinstance(results, dict) or {"part", "models", "quantities", "noise"} - results.keys():
        raise CannotCompare(f"{path}: not a results file (it needs part, models, quantities and noise)")
    noise = results["noise"].values() if isinstance(results["noise"], dict) else [None]
    numbers = all(
        isinstance(n, dict) and _number(n.get("measured")) and _number(n.get("limit")) for n in noise
    )
    objects = isinstance(results["models"], dict) and isinstance(results["quantities"], dict)
    if not (isinstance(results["part"], str) and objects and numbers):
        raise CannotCompare(f"{path}: not a results file (models, quantities and noise do not have its form)")
    return results


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def with_published(new: dict) -> list[str]:
    """A line for every published figure that was missed or not measured."""
    measured = new["quantities"] | {id: entry["measured"] for id, entry in new["noise"].items()}
    try:
        figures = published.load(new["part"])
    except OSError as error:
        raise CannotCompare(f"there are no published figures of {new['part']!r}") from error
    if bundled := [name for name in new["models"] if name in STANDS_FOR]:
        names = ", ".join(bundled)
        raise CannotCompare(
            f"measured on {names}: the articles print no figures of theirs, so name a baseline"
        )
    verdicts = [published.judge(figure, measured) for figure in figures.values()]
    return [
        f"{v.figure['id']}: {show(v.measured) if v.word == 'MISMATCH' else v.word}, "
        f"printed {show(v.figure['published'])} ({published.tolerance(v.figure)})"
        for v in verdicts
        if v.word != "match"
    ]


def with_baseline(new: dict, base: dict) -> list[str]:
    """A line for every quantity that differs from the baseline's, or that only one of the two has."""
    if new["part"] != base["part"]:
        raise CannotCompare(f"{new['part']} is not {base['part']}: compare results of the same part")
    figures = published.load(new["part"])
    differences = []
    for kind in ("quantities", "noise"):
        for id in new[kind] | base[kind]:
            if id not in new[kind] or id not in base[kind]:
                differences.append(f"{id}: only in the {'baseline' if id in base[kind] else 'new results'}")
                continue
            n, b = new[kind][id], base[kind][id]
            if kind == "noise":  # by the stricter limit: the new results may not excuse themselves
                well = n["measured"] <= min(n["limit"], b["limit"])
            else:
                well = same(n, b, figures.get(printed_id(id)))
            if not well:
                differences.append(f"{id}: {show(n)}; baseline {show(b)}")
    return differences


def printed_id(id: str) -> str:
    """The published id that `id` stands for: the bundled model's name exchanged."""
    for bundled, name in STANDS_FOR.items():
        id = id.replace(bundled, name)
    return id


def same(new: Any, base: Any, figure: dict | None) -> bool:
    """Whether two measured values agree, under the printed figure's check where there is one."""
    if figure and figure["check"] in ("decimals", "relative", "rank"):
        return published.agrees(new, base, figure)
    if isinstance(new, list) and isinstance(base, list):
        return len(new) == len(base) and all(same(n, b, None) for n, b in zip(new, base, strict=True))
    if isinstance(new, float) and isinstance(base, float):
        return abs(new - base) <= max(UNPRINTED["relative"] * abs(base), UNPRINTED["absolute"])
    return new == base


def pairs(new: Path, base: Path | None) -> list[tuple[Path, Path | None]]:
    """The files to compare with each other."""
    if not new.is_dir():
        return [(new, base / new.name if base and base.is_dir() else base)]
    files = sorted(new.glob("*.json"))
    if not files:
        raise CannotCompare(f"{new}: no results files in this folder")
    if base and not base.is_dir():
        raise CannotCompare(f"{base}: {new} is a folder, so this should be one")
    return [(file, base / file.name if base else None) for file in files]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m circuits.compare",
        description=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("baseline", type=Path, metavar="BASELINE", nargs="?")
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without the token's letters
    missed = 0
    try:
        for file, base in pairs(args.new, args.baseline):
            new = load(file)
            differences = with_baseline(new, load(base)) if base else with_published(new)
            for line in differences:
                say(f"{file}: {line}")
            missed += len(differences)
    except (CannotCompare, OSError, ArithmeticError, ValueError) as error:
        note(f"cannot compare: {error}")
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
