"""Files: from the hub or its cache, each checked by its hash, and every fault in one line.

`snapshot` asks the hub once which commit a repository is at and which files it has, fetches what the
cache lacks of it, and where the hub does not answer goes by the cache's own last commit.
"""

import contextlib
import hashlib
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from circuits import Fault


class ModelError(Fault):
    """A model that cannot be used; the message is one line: what is wrong, and what would be right."""

    status = 3


class Unavailable(ModelError):
    """The weights can be had neither from the hub nor from its cache."""


PATIENCE = 4.0  # seconds for the hub to say what a repository holds
_unreachable: dict[str, tuple[float, Exception]] = {}  # hub: when and how it gave no answer, to wait once


def snapshot(repository: str, wanted: Callable[[list[str]], list[str]]) -> dict[str, Path]:
    """{name: file in the hub's cache}, of the files that `wanted` picks from the names in a repository.

    One question to the hub (which commit, which files); what the cache has of that commit is not fetched
    again. Where the hub does not say, the cache's own last commit. Every file is checked by its hash.

    Raises Unavailable where neither has the files, and ModelError for one that is damaged, that the
    repository does not have, or that the disk does not take.
    """
    with quietly():
        try:
            commit, names = listing(repository)
        except Exception as error:  # each major version of the hub's client raises its own kinds
            return from_cache(repository, wanted, explain(error))
        picked = wanted(names)
        if missing := [name for name in picked if name not in names]:
            raise ModelError(f"{repository}: the repository has no {', '.join(missing)}")
        return {name: download(repository, commit, name) for name in picked}


def listing(repository: str) -> tuple[str, list[str]]:
    """(commit, names of its files), from the hub. Not `snapshot_download`: it asks this without a timeout."""
    from huggingface_hub import HfApi, constants

    when, failure = _unreachable.get(constants.ENDPOINT, (-60.0, None))
    if failure and time.monotonic() - when < 60:
        raise failure
    try:
        # Its own timeout is for each read, which an answer that trickles in never takes.
        asked = aside(patiently, lambda: HfApi().model_info(repository, timeout=PATIENCE))
        info = asked.result(timeout=2 * PATIENCE)
    except Exception as error:
        if (status(error) or 500) >= 500:
            _unreachable[constants.ENDPOINT] = time.monotonic(), error
        raise
    return info.sha, [file.rfilename for file in info.siblings or ()]


def aside(work: Callable, *args: Any) -> Future:
    """What `work` will return, from a thread that ends with the process: nothing need wait for it."""
    future = Future()

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def from_cache(repository: str, wanted: Callable[[list[str]], list[str]], reason: str) -> dict[str, Path]:
    """`snapshot` without a hub, for the reason given."""
    from huggingface_hub import constants, try_to_load_from_cache

    marks = (try_to_load_from_cache(repository, name) for name in ("config.json", "tokenizer.json"))
    folder = next((Path(mark).parent for mark in marks if isinstance(mark, str)), Path("no such folder"))
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    picked = wanted(names)
    if missing := [name for name in picked if name not in names]:
        lacking = f"{', '.join(missing)} of {repository}"
        raise Unavailable(f"{lacking} not in the cache {constants.HF_HUB_CACHE}, and {reason}")
    if not constants.HF_HUB_OFFLINE:
        note(f"{repository}: from the cache, for {reason}")
    files = {name: folder / name for name in picked}
    for file in files.values():
        if damaged(file):
            raise ModelError(f"{file.resolve()}: damaged, its hash is not its name: delete it, and {reason}")
    return files


def download(repository: str, commit: str, name: str) -> Path:
    """One file of a commit, in the hub's cache; one that is damaged there is fetched again, once."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def fetch(**how: Any) -> Path:
        return Path(patiently(lambda: hf_hub_download(repository, name, etag_timeout=PATIENCE, **how)))

    cached = try_to_load_from_cache(repository, name, revision=commit)
    try:
        # By default of the branch, and not of the commit: the client then notes the branch's commit in the
        # cache, which a later run without a hub goes by.
        file = Path(cached) if isinstance(cached, str) else fetch()
        if again := damaged(file):
            file = fetch(revision=commit, force_download=True)
    except Exception as error:
        kind = ModelError if of_this_machine(error) else Unavailable
        raise kind(f"{repository}/{name}: {explain(error)}") from error
    if not file.is_file():
        raise ModelError(f"{file}: a folder where a file should be: remove it")
    if commit not in file.parts:
        raise ModelError(f"{repository}: changed, or the hub failed, while it was fetched: run again")
    if again and damaged(file):
        raise ModelError(f"{file.resolve()}: damaged, also when fetched again: its hash is not its name")
    return file


def patiently(ask: Callable[[], Any]) -> Any:
    """What `ask` returns; where the hub has a passing fault of its own (HTTP 5xx), ask twice more."""
    for pause in (0.5, 1.0):
        try:
            return ask()
        except Exception as error:
            if (status(error) or 0) < 500:
                raise
        time.sleep(pause)
    return ask()


def status(error: BaseException | None) -> int | None:
    """The HTTP status behind an exception of the hub's client, which wraps some in others."""
    while error is not None:
        if code := getattr(getattr(error, "response", None), "status_code", None):
            return code
        error = error.__cause__
    return None


def of_this_machine(error: Exception) -> bool:
    """Whether it is the disk that fails, and not the hub; the client's own OSErrors have no number."""
    return isinstance(error, OSError) and bool(error.errno)


def explain(error: Exception) -> str:
    """Why the hub does not serve us, and the way out, as the end of a sentence."""
    from huggingface_hub import constants, get_token

    hub, code = constants.ENDPOINT, status(error)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set: unset it, or set HF_HOME to a cache that has it"
    if of_this_machine(error):
        place = f"{error.filename or constants.HF_HUB_CACHE} cannot be used ({error.strerror})"
        return f"{place}: mend that, or set HF_HOME to another folder"
    if code == 401 and get_token():
        return f"{hub} refuses the token in HF_TOKEN or the token file (401): unset or renew it"
    if code in (401, 404):
        return f"{hub} has no public repository or file of that name ({code}): see HF_ENDPOINT"
    if code == 403:
        return f"{hub} forbids it (403): a token is needed that may read it"
    if code:
        return f"{hub} fails (HTTP {code}): try again later"
    return f"{hub} cannot be reached ({first_line(error)}): connect, or set HF_HOME to a cache that has it"


def damaged(file: Path) -> bool:
    """Whether a file is not what the cache named it by: its sha256, or git's sha1 for a small one."""
    blob = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return sha256(blob) != blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        content = blob.read_bytes()
        return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest() != blob.name
    return False  # a cache without links, where files keep their own names


def hub_source(repository: str, files: dict[str, Path]) -> dict[str, str]:
    """Where weights came from: the last of a snapshot's files."""
    name, file = list(files.items())[-1]
    blob = file.resolve().name
    checksum = blob if len(blob) == 64 else sha256(file)  # `snapshot` has checked it
    commit = files["config.json"].parent.name
    return {"weights": "hub", "repository": repository, "commit": commit, "file": name, "sha256": checksum}


def sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def note(text: str) -> None:
    """A line on stderr, if anybody has it open."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is a ModelError that begins with `what`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what}: {first_line(error)}") from error


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No warnings, and what a library prints goes to stderr: stdout is the transcript's."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
