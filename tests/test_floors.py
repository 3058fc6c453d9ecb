"""Who may import whom: a module imports only from the floors below it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import edgespec

HOUSE = Path(edgespec.__file__).parent

#: From the ground up. Rooms of one floor do not import each other, but for the ground floor's.
FLOORS = [
    {"errors", "extras", "values", "types", "sampling", "logprobs", "baseline", "stats", "storage", "constraint"},
    {"backends", "verify"},
    {"text", "prices"},
    {"drafters", "grammar"},
    {"controller"},
    {"engine"},
    {"runtime"},
    {"aio", "library", "testing", "tools"},
]
#: What an app imports: above all floors.
DOOR = "__init__"
#: Neighbours: the runtime imports none of them.
NEIGHBOURS = {"__main__", "bench", "cli", "converters", "distill", "models", "server", "terminal"}
#: What the library uses of them, when it is asked for.
USED = {"library": {"converters", "models"}}
ENGINES = [
    "llama_cpp",
    "onnxruntime",
    "openvino",
    "gguf",
    "onnx",
    "tokenizers",
    "sentencepiece",
    "huggingface_hub",
    "torch",
    "llguidance",
]


def modules() -> dict[str, Path]:
    """The runtime's files by their dotted name below `edgespec`."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        parts = path.relative_to(HOUSE).with_suffix("").parts
        if parts[0] not in NEIGHBOURS:
            found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """The dotted names below `edgespec` that `module` imports, wherever in the file."""
    package = module.split(".") if path.stem == "__init__" and module != "__init__" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["edgespec", *package][: len(package) + 2 - node.level] if node.level else []
            base = [*above, *(node.module.split(".") if node.module else [])]
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "edgespec":
                yield ".".join(name[1:] or ["__init__"])


def floor(module: str) -> int:
    top = module.split(".", maxsplit=1)[0]
    if top == DOOR:
        return len(FLOORS)
    found = [level for level, names in enumerate(FLOORS) if top in names]
    assert found, f"edgespec.{module} stands on no floor: give it one in FLOORS"
    return found[0]


MODULES = modules()


def known(name: str) -> str:
    """The module of an imported name: `drafters.Drafter` is `drafters`."""
    parts = name.split(".")
    while parts and ".".join(parts) not in MODULES and parts[0] not in NEIGHBOURS:
        parts.pop()
    return ".".join(parts) or "__init__"


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_from_below_only(module: str) -> None:
    used = USED.get(module.partition(".")[0], set())
    for name in map(known, imports(module, MODULES[module])):
        if name.partition(".")[0] in used:
            continue
        assert name.partition(".")[0] not in NEIGHBOURS, f"edgespec.{module} imports its neighbour {name}"
        if name.split(".")[0] == module.split(".", maxsplit=1)[0]:
            continue  # within a package: see below
        below = floor(name) < floor(module) or floor(name) == floor(module) == 0
        assert below, f"edgespec.{module} imports edgespec.{name} from its own floor or above"


def test_no_imports_go_in_circles() -> None:
    graph = {module: {*map(known, imports(module, path))} - {module} for module, path in MODULES.items()}
    *_, top = TopologicalSorter(graph).static_order()
    assert floor(top) >= len(FLOORS) - 1


def test_the_reader_of_imports_reads() -> None:
    """A test that reads nothing passes always."""
    assert {"types", "verify", "backends"} <= {*map(known, imports("drafters.model", MODULES["drafters.model"]))}
    assert {"drafters", "controller.draft_tree", "verify"} <= {
        *map(known, imports("controller.expansion", MODULES["controller.expansion"]))
    }
    assert "drafters.lookup" in [*map(known, imports("runtime.opening", MODULES["runtime.opening"]))]
    assert len(MODULES) >= 18


#: What engines, or drafters, have in common.
SHARED = (
    *(
        f"backends.{name}"
        for name in ("amx", "attention_window", "device", "endpoint", "engine_choice", "exactness", "gguf_header")
    ),
    *(
        f"backends.{name}"
        for name in (
            "head_",
            "heads",
            "interrupt",
            "machine",
            "model_files",
            "onnx_",
            "padded_session",
            "parallel",
            "recurrent_state",
            "sequence",
            "session",
            "vocabulary",
        )
    ),
    "backends.tap",
    "backends.token_ids",
    "backends.tree_layout",
    *(f"drafters.{name}" for name in ("block_rows", "draft_session", "head", "suffix_automaton")),
)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(("drafters", "backends"))])
def test_methods_and_engines_know_nothing_of_each_other(module: str) -> None:
    """No drafter imports an engine or another drafter; no engine imports another. Its own files share its name."""
    own = module.split("_", maxsplit=1)[0]
    for name in map(known, imports(module, MODULES[module])):
        if name.startswith((f"{own}_", *SHARED)) and floor(name) == floor(module):
            continue
        assert not name.startswith(("drafters.", "backends.")), f"edgespec.{module} imports edgespec.{name}"


def test_the_round_names_no_method_and_no_engine() -> None:
    names = [m for m in MODULES if m.startswith(("controller.", "prices."))]
    for module in ("engine", "verify", "prices", *names):
        source = MODULES[module].read_text("utf-8")
        texts = [
            n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        assert not {"lookup", "model", "llama", "toy", "gguf"} & set(texts)
        others = tuple({"drafters.", "backends.", "verify."} - {f"{module}."})
        assert not [n for n in imports(module, MODULES[module]) if n.count(".") > 1 and n.startswith(others)]


def test_the_drawing_of_the_floors_is_right() -> None:
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text("utf-8")
    drawn = re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    assert {(int(level), room) for level, room in drawn} == {
        (level, room) for level, rooms in enumerate(FLOORS) for room in rooms
    }
    neighbours = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    assert {name for names in neighbours for name in re.findall(r"\w+", names)} == NEIGHBOURS


@pytest.mark.parametrize("statement", ["import edgespec", "import edgespec.backends.toy", "import edgespec.prices"])
def test_importing_edgespec_loads_no_engine(statement: str) -> None:
    """An app that embeds it pays for an engine when it opens a model, and never for converters."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "edgespec.engine" in loaded
    assert not loaded & {*ENGINES, "click", "rich", *(f"edgespec.{name}" for name in NEIGHBOURS)}
