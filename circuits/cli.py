"""What the four scripts share: options, which models to run, and the exit status.

exit status:
  0  all is well
  1  a printed figure, or an identity, missed its tolerance
  2  bad usage, or results that cannot be written
  3  the published models are not to be had, or a model that cannot be used or is not covered
  130, 143  stopped by Ctrl-C, by SIGTERM
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from circuits import Fault, figures, published
from circuits.hub import aside, explained, note, quietly
from circuits.report import WIDTH, Report, say

TITLES = {
    "part1": "Part 1: the residual stream",
    "part1_toy": "Part 1, the examples worked by hand",
    "part2": "Part 2: one attention head",
    "part2_toy": "Part 2, the examples worked by hand",
}


RESULTS = Path("results")


def run(
    part: str,
    sections: Callable,
    tables: dict[str, dict],
    explore: Callable,
    argv: Sequence[str] | None = None,
) -> int:
    """Run a part on the published or the bundled models, or on a reader's own; returns the exit status.

    `tables` has for "published" and "mini" what the part looks at: its models by role, its prompt,
    its words. `sections(report, table, checkpoints)` measures, with a checkpoint for each role.
    `explore(report, model, asked)` measures any one model (`circuits.explore.ask`).
    """
    parser = _parser(part)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--models",
        choices=["auto", "published", "mini"],
        help="auto: published, from the hub or its cache, else bundled (default); "
        "published: never fall back; mini: the bundled ones, no network",
    )
    parser.add_argument(
        "--figures",
        action="store_true",
        help='draw pictures too, PNG and SVG, beside the results (needs pip install -e ".[figures]")',
    )
    which.add_argument(
        "--model",
        metavar="NAME",
        help="take another model apart: any name that TransformerLens knows, one that --list prints, "
        "or a folder (./folder) laid out as the published repositories",
    )
    which.add_argument("--list", action="store_true", help="print the bundled and published models, and stop")
    asking = parser.add_argument_group("with --model")
    asking.add_argument("--prompt", metavar="TEXT", help="what it reads (default: the article's prompt)")
    if part == "part2":
        asking.add_argument(
            "--head",
            type=_head,
            metavar="L.H",
            help="layer and head (default: the one that raises the predicted token most)",
        )
    asking.add_argument(
        "--words",
        type=_words,
        metavar="WORDS",
        help="tokens to look up, with a comma between them and their spaces kept: ' tea, coffee' "
        "(default: the tokens of the prompt)",
    )

    def body(args: argparse.Namespace) -> int:
        if args.list:
            return _list()
        if args.model is not None:
            return _explore(part, explore, tables["published"]["prompt"], args)
        if alone := [
            option for option in ("prompt", "head", "words") if getattr(args, option, None) is not None
        ]:
            parser.error(f"argument --{alone[0]}: only with --model")
        return _measure(part, sections, tables, args)

    return _guarded(parser, body, argv)


def run_toy(part: str, sections: Callable) -> int:
    """Run the examples worked by hand, `sections(report)`; returns the exit status."""

    def measure(args: argparse.Namespace) -> int:
        out = args.out or RESULTS
        _writable(out)
        report = Report(part, published.load(part))
        report.say(f"{TITLES[part]} | numpy {version('numpy')}")
        sections(report)
        return _finish(report, out)

    return _guarded(_parser(part), measure)


def _measure(part: str, sections: Callable, tables: dict[str, dict], args: argparse.Namespace) -> int:
    import torch

    from circuits import models

    if args.figures:
        figures.check()
    out = args.out or RESULTS
    _writable(out)
    names = {kind: table["models"] for kind, table in tables.items()}
    with quietly():
        models.import_client()
        # To ask the hub and hash files leaves Python idle: it imports meanwhile.
        chosen = aside(_choose, args.models or "auto", names)
        with importing(_script(part)):
            models.import_transformer_lens()
        with explained("the models cannot be had"):
            kind, checkpoints = chosen.result()
    report = Report(part, published.load(part) if kind == "published" else None)
    _first_line(report)
    if kind == "mini":
        absent = tables["published"]["models"].values()
        report.say(f"Not the published models ({', '.join(absent)}): bundled ones stand in, asked for")
        report.say("words that are one token to them.")
    for checkpoint in checkpoints.values():
        _name(report, checkpoint)
    with torch.no_grad():
        sections(report, tables[kind], checkpoints)
    return _finish(report, out / "mini" if kind == "mini" else out, args.figures)


def _explore(part: str, explore: Callable, prompt: str, args: argparse.Namespace) -> int:
    """The sections on the model, head, prompt and words that the options name."""
    import torch

    from circuits import architecture, models, vocabulary
    from circuits.explore import ask, folder

    prompt = prompt if args.prompt is None else args.prompt
    for text in (prompt, *(args.words or ())):
        vocabulary.encodable(text)
    _writable(args.out or RESULTS)
    with quietly():
        models.import_client()
        with importing(_script(part)):
            models.import_transformer_lens()
    chosen = models.explored(args.model)
    architecture.check(chosen.config, heads=part == "part2")
    model = chosen.model()
    unfolded = chosen.model(folded=False) if part == "part1" and model.cfg.normalization_type else None
    report = Report(part, any_size=True)
    with torch.no_grad():
        asked = ask(model, prompt, getattr(args, "head", None), args.words, unfolded)
        _first_line(report)
        _name(report, chosen)
        report.quantity("0.prompt", "prompt", prompt)
        if part == "part2":
            report.quantity("0.head", "head", "{}.{}".format(*asked.head))
        for special in vocabulary.specials(model, prompt):
            report.say(f"  {special!r} in it is read as that special token, not as its letters")
        explore(report, model, asked)
    head = asked.head if part == "part2" else None
    name = folder(chosen.name, head, prompt, args.words)
    return _finish(report, args.out or RESULTS / "explore" / name, args.figures)


def _list() -> int:
    from circuits import models

    for line in models.catalogue():
        say(line)
    return 0


def _head(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not LAYER.HEAD, such as 0.3")
    layer, head = text.split(".")
    return int(layer), int(head)


def _words(text: str) -> list[str]:
    words = text.split(",")
    if "" in words:
        raise argparse.ArgumentTypeError(f"{text!r} has an empty word")
    return words


def _first_line(report: Report) -> None:
    import torch

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformer_lens", "numpy"))
    report.say(f"{TITLES[report.part]} | {versions}, {torch.get_num_threads()} threads")


def _name(report: Report, checkpoint: Any) -> None:
    report.models[checkpoint.name] = checkpoint.source
    # A commit or a checksum by its first digits: the results file has it whole.
    words = (re.sub("^[0-9a-f]{40,}$", lambda m: m[0][:12], word) for word in checkpoint.source.values())
    report.say(f"  {checkpoint.name}: {' '.join(words)}")


def _draw(report: Report, folder: Path) -> None:
    report.say()
    report.say("== Pictures ".ljust(WIDTH, "="))
    for name in figures.draw(report.part, report.measured(), folder):
        report.say(f"  {name}")


def _choose(wanted: str, models: dict[str, dict[str, str]]) -> tuple[str, dict]:
    """("published" or "mini", a checkpoint for each role); on stderr, why the published are not to be had."""
    from circuits.models import Unavailable, checkpoint

    if wanted != "mini":
        try:
            return "published", {role: checkpoint(name) for role, name in models["published"].items()}
        except Unavailable as reason:
            if wanted == "published":
                raise
            note(f"The published models are not to be had, so bundled ones stand in: {reason}")
    return "mini", {role: checkpoint(name) for role, name in models["mini"].items()}


def _finish(report: Report, folder: Path, pictures: bool = False) -> int:
    if pictures:
        _draw(report, folder)
    well = report.conclude()
    for name in _exchanged(report, folder):
        note(f"{name}: not the weights that {folder / report.part}.json was measured on")
    report.write(folder)
    note(f"wrote {folder / report.part}.json and {folder / report.part}_stdout.txt")
    return 0 if well else 1


def _exchanged(report: Report, folder: Path) -> list[str]:
    """The models whose weight file is not the one that the last results were measured on."""
    try:
        before = json.loads((folder / f"{report.part}.json").read_text(encoding="utf-8"))["models"]
        return [name for name, s in report.models.items() if before.get(name, s)["sha256"] != s["sha256"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []  # no results before these, or none that can be read


@contextlib.contextmanager
def importing(script: str) -> Iterator[None]:
    """Ctrl-C while a script imports for seconds ends it at once: as an exception it may get lost there.

    Threads that wait for long leave the processor to others (set before torch is there, which reads it once).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    before = signal.getsignal(signal.SIGINT)
    ours = script == "__main__" and before is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def _script(part: str) -> str:
    """What `importing` is told: that the script runs, or that another program has called it."""
    return "__main__" if Path(sys.argv[0]).name == f"circuits_{part}.py" else ""


def _writable(folder: Path) -> None:
    """Find out before the work, not after it. Raises OSError."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write into {folder}")


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no folder's")
    return Path(text)


def _parser(part: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"circuits_{part}.py", description=TITLES[part], epilog=__doc__.split("\n\n")[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--out", type=_folder, metavar="DIR", help="where results go (default: results, or a folder below it)"
    )
    return parser


def _guarded(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Run `body`; a fault that is the user's to mend is one line on stderr, not a traceback."""
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without the token's letters
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return body(args)
    except (KeyboardInterrupt, SystemExit) as stop:
        status = 130 if isinstance(stop, KeyboardInterrupt) else stop.code
        if threading.active_count() > 1:  # one is in the middle of a download: Python's own end may crash
            sys.stdout.flush()
            os._exit(status)
        return status
    except OSError as error:
        note(f"{parser.prog}: cannot write the results: {error}")
        return 2
    except Fault as fault:
        note(f"{parser.prog}: {fault}")
        return fault.status
