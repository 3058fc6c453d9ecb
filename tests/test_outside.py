"""Drafters from outside, of an app or of installed packages: they change no text, whatever they do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import (
    Device,
    Drafter,
    DrafterError,
    EdgespecError,
    Evaluated,
    Finished,
    Guess,
    OptionError,
    RoundContext,
    Runtime,
    Sampling,
    Speculation,
    Target,
    Text,
    assemble,
    load,
)
from edgespec.backends.toy import Bytes, ToyModel, ngram_rule
from edgespec.testing import RuleDrafter, check_drafter, decode_plain
from edgespec.types import Distribution

from .helpers import ignore_machine_times

EXAMPLES = Path(__file__).parents[1] / "examples"
TALK = ngram_rule(Bytes.size, order=2, seed=5)
PROMPT = [*b"abc"]


class Mine(Drafter):
    """Right, unless told to do something else."""

    def __init__(self, target: Target | None = None, name: Any = "mine") -> None:
        self.name = name
        self.target = target
        self.closed = 0
        self._rule = RuleDrafter(TALK)

    def begin(self, round_context: RoundContext) -> None:
        self._rule.begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return self._rule.guess(path, most)

    def close(self) -> None:
        self.closed += 1


def opened(*drafters: Any, names: tuple[str, ...] | None = None, k: int | None = 3) -> Runtime:
    speculation = Speculation(names, k)
    return assemble(ToyModel(TALK), drafters=drafters, device=Device(context=128), speculation=speculation)


def answer(runtime: Runtime, sampling: Sampling | None = None) -> Finished:
    """An answer, whose text must be that of plain decoding."""
    said, sampling = list[int](), sampling or Sampling()
    for event in runtime.complete(PROMPT, sampling, max_tokens=40):
        if isinstance(event, Text):
            said += event.tokens
        elif isinstance(event, Finished):
            assert said == decode_plain(TALK, PROMPT, sampling, 40, Bytes().is_eog)
            return event
    raise AssertionError("no Finished")


# --- of an app


@pytest.mark.parametrize("k", [3, None])
def test_an_object_drafts(k: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_machine_times(monkeypatch)
    mine = Mine()
    with opened(mine, names=("mine",), k=k) as runtime:
        assert runtime.drafters == ("lookup", "mine")
        finished = answer(runtime, Sampling(temperature=0.7, seed=1))
        assert answer(runtime).stats.by_drafter["mine"][1] > 5
        assert finished.notices == ()
        before = mine.closed
    assert (before, mine.closed) == (0, 1)


def test_all_that_are_given_draft_where_no_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_machine_times(monkeypatch)
    with opened(Mine(), Mine(name="second"), k=None) as runtime:
        assert runtime.drafters == ("lookup", "mine", "second")
        assert set(answer(runtime).stats.by_drafter) & {"mine", "second", "mine+second", "lookup+mine+second"}


def test_a_factory_is_told_of_the_target() -> None:
    made: list[Mine] = []

    def make(target: Target) -> Mine:
        made.append(Mine(target))
        return made[-1]

    for factory in (make, Mine):
        with opened(factory, names=("mine",)) as runtime:
            assert answer(runtime).stats.by_drafter["mine"][1] > 5
    (mine,) = made
    assert mine.target is not None
    assert mine.target.vocabulary.tokenize("abc") == PROMPT
    assert (mine.target.context, mine.target.description) == (128, "toy")
    assert mine.closed == 1


def test_what_was_given_stays_open_where_loading_fails_and_what_was_made_does_not() -> None:
    given, made = Mine(), list[Mine]()

    def make(_target: Target) -> Mine:
        made.append(Mine(name="made"))
        return made[-1]

    with pytest.raises(OptionError, match="no drafter 'model'"):
        opened(given, make, names=("mine", "model"))
    assert (given.closed, made[0].closed) == (0, 1)


class NoMethods:
    name = "none"


@pytest.mark.parametrize(
    ("drafters", "kind", "says"),
    [
        ([Mine(), Mine()], OptionError, "two drafters named 'mine'"),
        ([Mine(name="lookup")], OptionError, "two drafters named 'lookup'"),
        ([Mine(name="a+b")], DrafterError, "the drafter Mine has the name 'a.b'; it must be a word"),
        ([Mine(name="")], DrafterError, "has the name ''"),
        ([Mine(name=7)], DrafterError, "has the name 7"),
        ([NoMethods()], DrafterError, "the drafter NoMethods has no method 'begin'; let its class inherit from"),
        ([object()], DrafterError, "the drafter object has the name None"),
        ([lambda: 1], DrafterError, "cannot be made: TypeError: .*takes 0 positional arguments"),
        ([lambda _target: 1], DrafterError, "has the name None"),
    ],
)
def test_what_is_no_drafter_is_refused(drafters: Sequence[Any], kind: type[EdgespecError], says: str) -> None:
    with pytest.raises(kind, match=says):
        opened(*drafters)


def test_drafters_are_a_list() -> None:
    given: Any = Mine()
    with pytest.raises(OptionError, match=r"drafters is .*; it must be a list of drafters"):
        load("missing.gguf", drafters=given)
    with pytest.raises(OptionError, match="it must be a list of drafters"):
        assemble(ToyModel(), drafters=given)


def test_names_are_checked_before_a_model_is_opened() -> None:
    with pytest.raises(OptionError, match=r"no drafter 'medusa'; there are lookup, model, cross-vocabulary, mine$"):
        load("missing.gguf", drafters=[Mine()], speculation=Speculation(("mine", "medusa")))
    with opened(Mine()) as runtime, pytest.raises(OptionError, match="no drafter 'medusa', only lookup, mine: "):
        runtime.complete("a", speculation=Speculation(("medusa",)))


# --- that fail


def fails(*_: Any) -> Any:
    raise RuntimeError("it broke\non two lines")


@pytest.mark.parametrize("k", [3, None])
@pytest.mark.parametrize("member", ["begin", "guess", "observe"])
def test_a_drafter_that_fails_drafts_no_more(member: str, k: int | None) -> None:
    mine = Mine()
    setattr(mine, member, fails)
    with opened(mine, names=("mine",), k=k) as runtime:
        (notice,) = answer(runtime).notices
        assert notice.startswith("The drafter 'mine' failed and drafts no more")
        assert notice.endswith("RuntimeError: it broke on two lines")
        assert answer(runtime).notices == ()
    assert mine.closed == 1


def test_a_close_that_fails_keeps_nothing_from_being_freed() -> None:
    class Model(ToyModel):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    mine, model = Mine(), Model(TALK)
    mine.close = fails  # type: ignore[method-assign]
    assemble(model, drafters=[mine]).close()
    assert model.closed == 1


@pytest.mark.parametrize("price", [float("nan"), -1, "much", None])
def test_a_price_that_is_none_is_a_failure(price: Any) -> None:
    class Dear(Mine):
        @property
        def step_price(self) -> float:
            return price

    with opened(Dear(), names=("mine",), k=None) as runtime:
        assert any("its step_price is" in notice for notice in runtime.notices)
        answer(runtime)


HALF = Distribution(np.array([7, 8]), np.array([0.5, 0.5]))


@pytest.mark.parametrize(
    ("guesses", "says"),
    [
        ([Guess(Bytes.size, 0.5)], "guessed the token 259; the vocabulary has tokens 0 to 258"),
        ([Guess(-1, 0.5)], "guessed the token -1"),
        ([Guess(1 << 70, 0.5)], "guessed the token 1180591620717411303424"),
        ([Guess(1.5, 0.5)], "a guess is edgespec.Guess"),  # type: ignore[arg-type]
        ([(7, 0.5)], "a guess is edgespec.Guess"),
        ([7], "a guess is edgespec.Guess"),
        (7, "TypeError"),
        ([Guess(7, 2.0)], "confidence is 2.0"),
        ([Guess(7, float("nan"))], "confidence is nan"),
        ([Guess(7, 0.5), Guess(8, 0.5), Guess(9, 0.5)], "3 guesses, but at most 1 were requested"),
        ([Guess(7, 0.5)] * 2, "guess"),
        ([Guess(9, 0.5, HALF)], "the token 9 cannot have been drawn"),
        ([Guess(7, 0.5, HALF._replace(probs=HALF.probs * 2))], "the token 7 cannot have been drawn"),
        ([Guess(7, 0.5, HALF._replace(tokens=np.array([7, 999])))], "the token 7 cannot have been drawn"),
    ],
)
def test_a_guess_that_cannot_be_reaches_no_engine(guesses: Any, says: str) -> None:
    mine = Mine()
    mine.guess = lambda path, most: guesses  # type: ignore[method-assign]
    with opened(mine, names=("mine",)) as runtime:
        (notice,) = answer(runtime).notices
        assert says in notice


def test_numbers_of_numpy_are_taken() -> None:
    mine = Mine()
    right = mine.guess
    mine.guess = lambda path, most: [  # type: ignore[method-assign]
        Guess(np.int32(guess.token), np.float32(guess.confidence)) for guess in right(path, most)
    ]
    with opened(mine, names=("mine",)) as runtime:
        finished = answer(runtime)
        assert finished.notices == ()
        assert finished.stats.by_drafter["mine"][1] > 5


def test_paths_are_the_controllers_own() -> None:
    paths: list[Sequence[int]] = []
    mine = Mine()
    right = mine.guess

    def keeping(path: Sequence[int], most: int) -> Sequence[Guess]:
        paths.append(path)
        return right(path, most)

    mine.guess = keeping  # type: ignore[method-assign]
    with opened(mine, names=("mine",)) as runtime:
        answer(runtime)
    assert all(isinstance(path, tuple) for path in paths)


class Recycling(Drafter):
    """What the target held likeliest after a token when it last stood anywhere, in rejected drafts too."""

    name = "recycling"
    top: int | None = 4

    def __init__(self, _target: Target) -> None:
        self.after: dict[int, list[Guess]] = {}
        self.told: list[Evaluated] = []

    def begin(self, round_context: RoundContext) -> None:
        self.last, self.is_eog = round_context.tokens[-1], round_context.is_eog

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        last = path[-1] if path else self.last
        return [] if self.is_eog(last) else self.after.get(last, [])[:most]

    def evaluated(self, what: Evaluated) -> None:
        self.told.append(what)
        if what.top is not None:
            for token, tokens, probs in zip(what.tokens, what.top.tokens.tolist(), what.top.probs, strict=True):
                self.after[token] = [Guess(other, float(p)) for other, p in zip(tokens, probs, strict=True)]


def test_a_follower_of_an_app_is_told_of_prompts_and_rounds() -> None:
    made: list[Recycling] = []

    def make(target: Target) -> Recycling:
        made.append(Recycling(target))
        return made[-1]

    check_drafter(make)
    assert any(what.top is None for each in made for what in each.told)
    assert any(what.top is not None for each in made for what in each.told)
    made.clear()
    with opened(make, names=("recycling",)) as runtime:
        assert answer(runtime).notices == ()
        assert answer(runtime).stats.by_drafter["recycling"][1] > 5
    assert made[0].told[0] == Evaluated(0, (97, 98), (-1, 0), (0, 1), None)
    with opened(Mine(), names=("mine",)) as runtime:
        assert answer(runtime).notices == (), "who is no follower is not told"


@pytest.mark.parametrize("top", [-1, 65, "many", 1.5])
def test_a_follower_wants_a_number_of_tokens(top: Any) -> None:
    class Wants(Recycling):
        pass

    Wants.top = top
    with opened(Wants, names=("recycling",)) as runtime:
        answer(runtime)
        (notice,) = runtime.notices
        assert f"its top is {top!r}" in notice


def test_a_follower_that_fails_drafts_no_more() -> None:
    class Fails(Recycling):
        def evaluated(self, what: Evaluated) -> None:
            fails()

    with opened(Fails, names=("recycling",)) as runtime:
        (notice,) = answer(runtime).notices
        assert "it broke on two lines" in notice


# --- of installed packages


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Writes what an installer leaves: a module and the metadata of a package."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules: list[str] = []

    def write(package: str, code: str, entry: str, metadata: str | None = None) -> None:
        module = entry.partition("=")[2].strip().partition(":")[0]
        (site / f"{module}.py").write_text(code, "utf-8")
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata or f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[edgespec.drafters]\n{entry}\n", "utf-8")
        modules.append(module)

    yield write
    for module in modules:
        sys.modules.pop(module, None)


GOOD = """
from edgespec import Drafter, Guess
class Zeros(Drafter):
    name = "called otherwise"
    def __init__(self, target): pass
    def begin(self, round_context): self.is_eog = round_context.is_eog
    def guess(self, path, most): return [] if path and self.is_eog(path[-1]) else [Guess(0, 0.1)]
"""


def test_an_installed_drafter_is_found_by_its_name(install: Install) -> None:
    install("good-package", GOOD, "zeros = good_module:Zeros")
    with opened(names=("zeros", "lookup")) as runtime:
        assert runtime.drafters == ("lookup", "zeros")
        assert answer(runtime).stats.by_drafter["zeros"][0] > 5
    with opened(Mine()) as runtime:
        assert runtime.drafters == ("lookup", "mine"), "only where it was asked for"
        with pytest.raises(OptionError, match=r"no drafter 'zeros', only lookup, mine: .* must be named when loading"):
            runtime.complete("a", speculation=Speculation(("zeros",)))
    with pytest.raises(
        OptionError, match=r"no drafter 'medusa'; there are lookup, model, cross-vocabulary, installed: zeros$"
    ):
        opened(names=("medusa",))


def test_what_is_not_asked_for_is_not_imported(install: Install) -> None:
    install("bad-package", "raise RuntimeError('imported')", "bad = bad_module:Bad")
    with opened(Mine(), names=("mine",)):
        pass
    with opened(), pytest.raises(OptionError, match=r"installed: bad$"):
        opened(names=("medusa",))
    assert "bad_module" not in sys.modules


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import not_there_at_all", "cannot be loaded: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise RuntimeError('two\\nlines')", "cannot be loaded: RuntimeError: two lines"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("def syntax(", "cannot be loaded: SyntaxError"),
        ("Other = 1", "cannot be loaded: AttributeError"),
        ("Bad = 7", "is 7; it must be a class or function that takes an edgespec.Target"),
        ("class Bad: pass", r"cannot be made: TypeError: Bad\(\) takes no arguments"),
        ("def Bad(target): raise OSError('no file')", "cannot be made: OSError: no file; repair it, or leave it out"),
        ("def Bad(target): return 7", "has no method 'begin'"),
    ],
)
def test_a_broken_package_is_named_on_one_line(code: str, says: str, install: Install) -> None:
    install("bad-package", code, "bad = bad_module:Bad")
    with pytest.raises(DrafterError, match=f"^the drafter 'bad' of the package bad-package {says}") as raised:
        opened(names=("bad",))
    assert "\n" not in str(raised.value)


def test_two_packages_with_one_name_are_told(install: Install) -> None:
    install("one-package", GOOD, "zeros = one_module:Zeros")
    install("two-package", GOOD, "zeros = two_module:Zeros")
    with pytest.raises(
        OptionError, match="several installed packages provide a drafter 'zeros': one-package, two-pack"
    ):
        opened(names=("zeros",))


def test_damaged_metadata_hides_no_other_package(install: Install) -> None:
    install("a-damaged", "", "no equals sign")
    install("good-package", GOOD, "zeros = good_module:Zeros")
    with opened(names=("zeros",)) as runtime:
        assert "zeros" in runtime.drafters


def test_a_built_in_name_is_the_built_in_drafter(install: Install) -> None:
    install("bad-package", "raise RuntimeError('imported')", "lookup = bad_module:Bad")
    with opened(names=("lookup",)) as runtime:
        assert runtime.drafters == ("lookup",)
    with pytest.raises(OptionError, match=r"there are lookup, model, cross-vocabulary$"):
        opened(names=("medusa",))


# --- the examples


def example(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_examples = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="these tests lie beside an install")


@needs_examples
def test_the_example_keeps_the_laws_in_forty_lines() -> None:
    path = EXAMPLES / "own_drafter.py"
    assert len(path.read_text("utf-8").splitlines()) <= 40
    check_drafter(example(path).Bigrams)


@needs_examples
def test_the_example_drafts_on_the_demo_pair() -> None:
    text = "The lazy dog, the lazy dog, the lazy dog, the"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "own_drafter.py"), text], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("{'bigrams': '")
    assert not done.stdout.startswith("{'bigrams': '0 of")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed the example package, without a network."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLES / "drafter_package", folder / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site")]
    done = subprocess.run([*command, str(folder / "source")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(site))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@needs_examples
def test_an_installed_package_drafts_in_a_chat(site: Path) -> None:
    chat = ("-m", "edgespec", "chat", "--temp", "0", "-p", "I need a table for two in Oakland tonight.", "--json")
    done = run(site, *chat, "--k", "3", "--drafter", "phrases")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    plain = [json.loads(line) for line in run(site, *chat, "--k", "0").stdout.splitlines()]
    said, wanted = ([token for e in each for token in e.get("tokens", ())] for each in (events, plain))
    assert said == wanted
    assert ["phrases"] in [event.get("drafters") for event in events]
    assert sum(event.get("accepted", 0) for event in events if event["event"] == "text") > 0
    wrong = run(site, *chat, "--drafter", "phrases,medusa")
    assert (
        "no drafter 'medusa'; there are lookup, model, cross-vocabulary, installed: phrases"
        in wrong.stdout + wrong.stderr
    )


@needs_examples
def test_an_installed_package_keeps_the_laws(site: Path) -> None:
    code = "from edgespec_phrases import Phrases; from edgespec.testing import check_drafter; "
    code += "check_drafter(Phrases, text='What time do you want to eat? Have a good day. ')"
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr
