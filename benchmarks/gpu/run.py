"""The kit's one command: build, check, measure, and write one JSON file and one page.

    python run.py --work DIR [--minutes 9.5] [--device cpu --small]
    python run.py --work DIR --architecture 86-real --steps build   (for a card of another machine)

Every call does what fits into its minutes, and the next one goes on where it ended. The exit status is 0 when all is
done, 3 when there is more to do, 1 when the build failed. The page is written in any case.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from . import page
from .budget import Budget
from .build import Build, BuildFailed
from .machine import NoCard, facts, libraries
from .results import Item, Results

STEPS = ("check", "prices", "speeds", "peers")
BUILD = "build"
MODELS = "models"
DONE, FAILED, MORE = 0, 1, 3
_GRACE = 15.0  # seconds that a step may take to end


class Stopped(Exception):
    """The process was asked to end."""


def options(arguments: list[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="the folder of builds, models and results")
    parser.add_argument("--minutes", type=float, default=9.5, help="that this call may take (default: 9.5)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for rehearsals")
    parser.add_argument("--architecture", default="", help="of the card, for CMake (default: that of the card present)")
    parser.add_argument("--small", action="store_true", help="tiny models, for rehearsals")
    parser.add_argument("--questions", type=int, default=4, help="of each category of a suite (default: 4)")
    parser.add_argument("--only", action="append", default=[], help="items whose names have this; repeatable")
    parser.add_argument("--steps", default=",".join(STEPS), help="what to do after the build (default: all)")
    parser.add_argument("--head", type=Path, action="append", default=[], help="a head of the target; repeatable")
    parser.add_argument(
        "--pair",
        type=Path,
        nargs="+",
        help="a target and its drafts in place of the demo pair; llama-server gets the first",
    )
    parser.add_argument("--contender", action="append", default=[], help="of the step speeds, as k=3; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the build (default: all cores)")
    found = parser.parse_args(arguments)
    if found.pair and len(found.pair) < 2:
        parser.error("--pair has a target alone; give a draft after it")
    if strange := set(found.steps.split(",")) - {*STEPS, BUILD}:
        parser.error(
            f"--steps has {', '.join(sorted(strange))}; known are {', '.join(STEPS)}, and {BUILD} for it alone"
        )
    return found


def main(kit: Path, arguments: list[str] | None = None) -> int:
    """Run the command of the kit in the folder `kit`; returns the exit status."""
    chosen = options(arguments)
    budget = Budget.of_minutes(chosen.minutes)
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    results = Results(work / "results.json")
    signal.signal(signal.SIGTERM, _stop)
    status = FAILED
    try:
        results.set("machine", facts("cpu" if chosen.steps == BUILD and chosen.architecture else chosen.device))
        status = _steps(Build(kit, work, chosen.device, chosen.architecture), chosen, budget)
    except NoCard as error:
        print(error, file=sys.stderr)
    except Stopped:
        status = MORE
    finally:
        page.write(work)
    print(f"{work / 'results.json'}\n{work / 'page.md'}\n{_ENDS[status]}")
    return status


_ENDS = {DONE: "All is done.", FAILED: "It failed.", MORE: "There is more to do: give the same command again."}


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def _steps(build: Build, chosen: argparse.Namespace, budget: Budget) -> int:
    if not build.done and not _built(build, chosen.jobs, budget):
        results = Results(build.work / "results.json")
        return MORE if any(item["state"] == "begun" for item in results.step("build").values()) else FAILED
    if chosen.steps == BUILD:
        return DONE
    whole = True
    for name in chosen.steps.split(","):
        with _models(name, build, chosen, budget):
            whole = _step(name, build, chosen, budget) and whole
    return DONE if whole else MORE


@contextmanager
def _models(step: str, build: Build, chosen: argparse.Namespace, budget: Budget) -> Iterator[None]:
    """Make all models beside the checks, if all are done: nothing else may run beside what is timed."""
    if step != STEPS[0] or chosen.only:
        yield
        return
    process = _started(_command(MODELS, build, chosen), build)
    try:
        yield
        process.wait(max(1.0, budget.left - _GRACE))
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end(process)


def _built(build: Build, jobs: int, budget: Budget) -> bool:
    """Install and compile in a process of its own, which is ended when time is up."""
    command = [sys.executable, "-m", "benchmarks.gpu.make", str(build.kit), str(build.work), build.device]
    command += [build.architecture or "-", str(jobs)]
    _bounded(command, build, budget)
    return build.done


def _step(name: str, build: Build, chosen: argparse.Namespace, budget: Budget) -> bool:
    """Run a step, again after an item that ended its process. Returns whether all of it was done."""
    command = _command(name, build, chosen)
    command += [word for head in chosen.head for word in ("--head", str(head.resolve()))]
    command += [word for part in chosen.only for word in ("--only", part)]
    while budget.left > _GRACE:
        print(f"{name}, {budget.left / 60:.1f} minutes left", flush=True)
        ended = _bounded(command, build, budget)
        if ended == 0:
            return True
        if ended is None:
            results = Results(build.work / "results.json")
            results.forgive(name)
            return False
        if not _begun(build.work, name):  # the step itself fails, not an item of it
            return False
    return False


def _command(name: str, build: Build, chosen: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.step", name, "--work", str(build.work), "--device", build.device]
    command += ["--server", str(build.server), "--questions", str(1 if chosen.small else chosen.questions)]
    command += [word for each in chosen.contender for word in ("--contender", each)]
    if chosen.pair:
        command += ["--pair", *(str(each.resolve()) for each in chosen.pair)]
    return [*command, *(["--small"] if chosen.small else [])]


def _begun(work: Path, name: str) -> bool:
    return any(item["state"] == "begun" for item in Results(work / "results.json").step(name).values())


def _bounded(command: list[str], build: Build, budget: Budget) -> int | None:
    """The exit status of a program; None if its time was up, and it was ended."""
    process = _started(command, build)
    try:
        return process.wait(max(1.0, budget.left - _GRACE))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _started(command: list[str], build: Build) -> subprocess.Popen[bytes]:
    """A program that finds the packages of the kit, and CUDA's libraries."""
    path = os.pathsep.join([str(build.site), str(build.kit / "source")])
    loader = os.pathsep.join([*libraries(), os.environ.get("LD_LIBRARY_PATH", "")]).strip(os.pathsep)
    own = {
        "EDGESPEC_CACHE": str(build.work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": path,
        **({"LD_LIBRARY_PATH": loader} if build.device == "cuda" else {}),
    }
    return subprocess.Popen(command, env={**os.environ, **own}, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended, and those that it started."""
    if process.poll() is not None:
        return
    for number, patience in ((signal.SIGTERM, _GRACE / 2), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def begin(kit: Path, work: Path, device: str, architecture: str, jobs: int) -> None:
    """Install the packages and build, as items of the step "build"."""
    build, results = Build(kit, work, device, architecture), Results(work / "results.json")
    results.restart("build")

    def install() -> dict[str, int]:
        build.install()
        return {"packages": len(list((kit / "wheels").glob("*.whl")))}

    def compiled() -> dict[str, object]:
        started, stored = time.monotonic(), build.stored()
        if stored is not None:
            build.restore(stored)
        else:
            build.compile(jobs)
        size = build.archive.stat().st_size if build.archive.exists() else 0
        return {
            "kept from before": stored is not None,
            "jobs": jobs,
            "seconds": round(time.monotonic() - started, 1),
            "archive": build.archive.name,
            "archive MB": round(size / 1e6, 1),
        }

    for item in results.open("build", [Item("packages", install), Item("llama.cpp", compiled)]):
        if results.run("build", item) != "done":
            kept = results.step("build").pop(item.name)  # the next call tries again
            results.set("build failed", kept.get("error", ""))
            raise BuildFailed(kept.get("error", ""))
        results.set("build failed", "")
