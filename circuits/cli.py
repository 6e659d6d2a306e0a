"""What the four scripts share: options, which models to run, and the exit status.

exit status:
  0  all is well
  1  a printed figure, or an identity, missed its tolerance
  2  bad usage, or results that cannot be written
  3  the published models are not to be had, or a model that cannot be used
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from circuits import Fault, figures, published
from circuits.report import WIDTH, Report

TITLES = {
    "part1": "Part 1: the big idea and the residual stream",
    "part1_toy": "Part 1, the examples worked by hand",
    "part2": "Part 2: one attention head, taken apart",
    "part2_toy": "Part 2, the examples worked by hand",
}


def run(part: str, sections: Callable, tables: dict[str, dict]) -> int:
    """Run a part on the published or the bundled models; returns the exit status.

    `tables` has for "published" and "mini" what the part looks at: its models by role, its prompt,
    its words. `sections(report, table, checkpoints)` measures, with a checkpoint for each role.
    """
    parser = _parser(part)
    parser.add_argument(
        "--models",
        choices=["auto", "published", "mini"],
        default="auto",
        help="auto: published, from the hub or its cache, else bundled (default); "
        "published: never fall back; mini: the bundled ones, no network",
    )
    parser.add_argument(
        "--figures",
        action="store_true",
        help='draw pictures too, PNG and SVG, beside the results (needs pip install -e ".[figures]")',
    )
    return _guarded(parser, lambda args: _measure(part, sections, tables, args))


def run_toy(part: str, sections: Callable) -> int:
    """Run the examples worked by hand, `sections(report)`; returns the exit status."""

    def measure(args: argparse.Namespace) -> int:
        report = Report(part, published.load(part))
        report.say(f"{TITLES[part]} | numpy {version('numpy')}")
        sections(report)
        return _finish(report, args.out)

    return _guarded(_parser(part), measure)


def _measure(part: str, sections: Callable, tables: dict[str, dict], args: argparse.Namespace) -> int:
    import torch

    if args.figures:
        figures.check()
    _writable(args.out)
    kind, checkpoints, note = _choose(args.models, {kind: table["models"] for kind, table in tables.items()})
    report = Report(part, published.load(part) if kind == "published" else None)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformer_lens", "numpy"))
    report.say(f"{TITLES[part]} | {versions}, {torch.get_num_threads()} threads")
    if note:
        report.say(note)
    for checkpoint in checkpoints.values():
        report.models[checkpoint.name] = checkpoint.source
        report.say(f"  {checkpoint.name}: {' '.join(checkpoint.source.values())}")
    with torch.no_grad():
        sections(report, tables[kind], checkpoints)
    folder = args.out / "mini" if kind == "mini" else args.out
    if args.figures:
        _draw(report, folder)
    return _finish(report, folder)


def _draw(report: Report, folder: Path) -> None:
    report.say()
    report.say("== Pictures ".ljust(WIDTH, "="))
    for name in figures.draw(report.part, report.measured(), folder):
        report.say(f"  {name}")


def _choose(wanted: str, models: dict[str, dict[str, str]]) -> tuple[str, dict, str]:
    """(kind, a checkpoint for each role, why the bundled models stand in or "")."""
    from circuits.models import Unavailable, checkpoint

    note = ""
    if wanted != "mini":
        try:
            return "published", {role: checkpoint(name) for role, name in models["published"].items()}, note
        except Unavailable as reason:
            if wanted == "published":
                raise
            note = f"The published models are not to be had, so the bundled ones are measured: {reason}"
            print(note, file=sys.stderr)
    return "mini", {role: checkpoint(name) for role, name in models["mini"].items()}, note


def _finish(report: Report, folder: Path) -> int:
    well = report.conclude()
    for name in _exchanged(report, folder):
        print(f"{name}: not the weights that {folder / report.part}.json was measured on", file=sys.stderr)
    report.write(folder)
    print(f"wrote {folder / report.part}.json and {folder / report.part}_stdout.txt", file=sys.stderr)
    return 0 if well else 1


def _exchanged(report: Report, folder: Path) -> list[str]:
    """The models whose weight file is not the one that the last results were measured on."""
    try:
        before = json.loads((folder / f"{report.part}.json").read_text(encoding="utf-8"))["models"]
        return [name for name, s in report.models.items() if before.get(name, s)["sha256"] != s["sha256"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # no results before these, or none that can be read


def _writable(folder: Path) -> None:
    """Find out before the work, not after it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write into {folder}")


def _parser(part: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"circuits_{part}.py", description=TITLES[part], epilog=__doc__.split("\n\n")[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="where results go (default: results)"
    )
    return parser


def _guarded(parser: argparse.ArgumentParser, body: Callable[[argparse.Namespace], int]) -> int:
    """Run `body`; a fault that is the user's to mend is one line on stderr, not a traceback."""
    args = parser.parse_args()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without the token's letters
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return body(args)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"{parser.prog}: cannot write the results: {error}", file=sys.stderr)
        return 2
    except Fault as fault:
        print(f"{parser.prog}: {fault}", file=sys.stderr)
        return fault.status
