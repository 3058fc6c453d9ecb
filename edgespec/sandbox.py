"""Jinja for templates of strangers: a sandbox in which a rendering has a budget of work.

Jinja's own sandbox keeps a template away from Python's internals, but `{{ 'a' * 10**10 }}` takes all memory, and nested
loops never end. Here every step of a rendering is charged to a `Budget` before it is taken, by what it may cost at
most: loops and macros by code that the compiler puts at the beginning of each block; operators, calls, filters and
tests where Jinja lets them be intercepted; comparisons, concatenations and slices by filters that are put around their
operands. What Jinja would compute while it compiles is left to the rendering. Memory is bounded with the work: what a
template makes is charged by its size, and nothing that it frees is refunded.

The dialect is that of transformers' `apply_chat_template`, without the filters for HTML pages and random text.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_context, pass_environment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from .errors import Interrupted, TemplateError

#: Characters of a template; those of known models have at most 20 000.
_LONGEST = 1 << 16
_STEP = 64  # the price of a step, where a character costs 1: about a microsecond, or some 400 bytes
_NODE = 16  # a piece of an expression
_ITEM = 8  # an item of a list, beside its text
#: The budget: known templates take at most 40 a character of long messages, and 16 000 a value of 3 000 short ones.
_BASE, _PER_CHARACTER, _PER_VALUE, _MOST = 1 << 25, 128, 1 << 14, 1 << 29
#: Characters of a prompt: what the longest known templates add is a tenth of it. All of it has to be tokenized.
_PROMPT, _PROMPT_PER_CHARACTER, _PROMPT_PER_VALUE = 1 << 18, 8, 1 << 10
_SECONDS = 20.0  # of the thread's own time: only where a step's cost was misjudged
_POLL = 64  # charges between two looks at the clock
_DEEPEST = 100  # calls inside calls
_LARGEST = 1 << 64  # results of arithmetic
_TOO_LARGE = "a number has more than 64 bits"

#: Filters that make lists, look at types or hand items on: they neither compare values nor write them as text.
_STRUCTURAL = frozenset(
    (
        "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject",
        "rejectattr", "reverse", "select", "selectattr", "slice",
    )
)  # fmt: skip
_SPREADING = ("list", "batch", "slice", "sort", "unique", "sum")  # that make lists of a text's characters
_TESTING = ("map", "reject", "rejectattr", "select", "selectattr")  # that may look at many items for one
_PAGES = ("lipsum", "pprint", "random", "striptags", "urlize", "wordcount", "wordwrap", "xmlattr")
_COMPARING = (
    "divisibleby", "even", "odd", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt",
    "lessthan", "<=", "le", "in",
)  # fmt: skip
_WRITING = ("lower", "upper")
_CONTAINERS: Any = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_SIZED: Any = (*_CONTAINERS, dict, range)


class Budget:
    """What a rendering may still cost.

    Args:
        size: of what is rendered, in characters.
        values: how many texts, numbers and lists that is.
        stop: asked now and then whether to give up.
    """

    __slots__ = ("_left", "_prompt", "_stop", "_unpolled", "_until", "depth")

    def __init__(self, size: int = 0, values: int = 0, stop: Callable[[], bool] = lambda: False) -> None:
        self.depth = 0
        self._prompt = _PROMPT + _PROMPT_PER_CHARACTER * size + _PROMPT_PER_VALUE * values
        self._left = min(_BASE + _PER_CHARACTER * size + _PER_VALUE * values, _MOST)
        self._stop = stop
        self._until = time.thread_time() + _SECONDS
        self._unpolled = 0

    def charge(self, cost: int = _STEP) -> None:
        """Take `cost` off.

        Raises:
            TemplateError: it is more than is left.
            Interrupted: `stop` said so.
        """
        self._left -= cost
        self._unpolled += 1
        if self._left < 0:
            raise _exhausted()
        if self._unpolled >= _POLL or cost > _BASE // 32:
            self._unpolled = 0
            if self._stop():
                raise Interrupted
            if time.thread_time() > self._until:
                raise _exhausted()

    def accept(self, prompt: str) -> str:
        """`prompt`, if it is not far longer than what it is made of.

        Raises:
            TemplateError: it is.
        """
        if len(prompt) > self._prompt:
            raise TemplateError(
                f"the model's chat template makes {len(prompt)} characters of messages that can need {self._prompt} at "
                "most; use another file of this model, or give it a prompt (`complete`)"
            )
        return prompt

    def weigh(self, value: Any) -> None:
        """Charge what it costs to write `value` as text, or to compare it: all that is in it, as often as it is."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
            return
        waiting = [value]
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, (str, bytes)):
                self.charge(_ITEM + len(inner))
            elif isinstance(inner, _CONTAINERS):
                self.charge(_NODE + _ITEM * len(inner))
                waiting.extend(inner)
            elif isinstance(inner, dict):
                self.charge(_NODE + 2 * _ITEM * len(inner))
                waiting.extend(inner)
                waiting.extend(inner.values())
            elif isinstance(inner, Namespace):
                waiting.append(object.__getattribute__(inner, "_Namespace__attrs"))
            else:
                self.charge(_ITEM)

    def take(self, value: Any) -> None:
        """Charge what it costs to go through `value` once."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
        elif isinstance(value, _SIZED):
            self.charge(_ITEM * len(value))


def _exhausted() -> TemplateError:
    return TemplateError(
        "the model's chat template was ended: it took more time or memory than these messages can need; use another "
        "file of this model, or give it a prompt (`complete`)"
    )


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. `budget` is that of the rendering under way: one at a time."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_shown,
        )
        self.budget = Budget()
        self.code_generator_class = _Charging
        for name in _PAGES:
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        self.filters.update(_FILTERS)
        self.filters = {name: self._guarded(name, function) for name, function in self.filters.items()}
        self.filters |= {"_each": self._each, "_made": self._made, "_weighed": self._weighed}
        tests: dict[str, Any] = self.tests
        for name in (*_COMPARING, *_WRITING):
            tests[name] = self._guarded(name, tests[name])
        self.globals |= {"raise_exception": _refuse, "strftime_now": self._now, "namespace": _Namespace}

    def compiled(self, source: str) -> jinja2.Template:
        """The template `source`.

        Raises:
            TemplateError: it is not valid, or too long.
        """
        if len(source) > _LONGEST:
            raise TemplateError(
                f"the model's chat template has {len(source)} characters, and {_LONGEST} are the most that are taken; "
                "use another file of this model, or give it a prompt (`complete`)"
            )
        self.budget = Budget(len(source))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, about the code that Jinja makes of a template
            return self.from_string(source)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        if operator == "+":
            if type(left) is str and type(right) is str:  # most of them
                self.budget.charge(_STEP + len(left) + len(right))
                return left + right
            self.budget.take(left)
            self.budget.take(right)
        elif operator == "*":
            self.budget.charge(max(_repeated(left, right), _repeated(right, left)))
        elif operator == "%" and isinstance(left, (str, bytes)):
            self.budget.charge(_format_cost(self.budget, left, right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_power(left, right)
        self.budget.charge()
        return _bounded(self.binop_table[operator](left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget = __self.budget
        budget.charge()
        if isinstance(__obj, (Macro, LoopContext)):
            for value in args:
                budget.take(value)
        else:
            # What is lazy might go on for long inside one call.
            args = tuple(list(value) if _is_lazy(value) else value for value in args)
            __self._weigh_call(__obj, args, kwargs)
        budget.depth += 1
        if budget.depth > _DEEPEST:
            raise _exhausted()
        try:
            return __self._made(super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.depth -= 1

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):  # to be hashed
            self.budget.weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`value` where it is a text's `format` or `format_map`, its fields charged; None where it is neither."""
        if super().wrap_str_format(value) is None:
            return None
        text, by_map = value.__self__, value.__name__ == "format_map"
        formatter = _EscapingFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)

        def formatted(*args: Any, **kwargs: Any) -> str:
            if by_map:
                (kwargs,) = args
                args = ()
            done: str = type(text)(formatter.vformat(text, args, kwargs))
            return done

        return formatted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Weighing().visit(super()._parse(source, name, filename))
        return tree

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter or test `function`, charged before it runs and for what it makes."""
        skipped = int(hasattr(function, "jinja_pass_arg"))
        structural, cost = name in _STRUCTURAL, _COSTS.get(name)
        signature = inspect.signature(function) if cost is not None else inspect.Signature()

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.charge()
            for value in (*args[skipped:], *kwargs.values()):
                (budget.take if structural else budget.weigh)(value)
            if isinstance(args[skipped], str if name in _SPREADING else _SIZED if name in _TESTING else ()):
                budget.charge(_STEP * len(args[skipped]))
            if cost is None:
                return self._made(function(*args, **kwargs))
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            budget.charge(cost(budget, bound.arguments))
            return self._made(function(*bound.args, **bound.kwargs))

        return guarded

    def _each(self, value: Any) -> Any:
        """What a loop goes through."""
        self.budget.take(value)
        return value

    def _weighed(self, value: Any) -> Any:
        self.budget.weigh(value)
        return value

    def _made(self, value: Any) -> Any:
        if isinstance(value, dict):
            self.budget.charge(_STEP * len(value))
        self.budget.take(value)
        return self._counted(value) if _is_lazy(value) else _bounded(value)

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.charge()
            yield item

    def _now(self, form: str) -> str:
        self.budget.charge(256 * len(form))  # Python's own limit
        return datetime.datetime.now().strftime(form)

    def _weigh_call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.budget.weigh(value)
        of = function.__self__ if isinstance(function, BuiltinFunctionType) else None
        if isinstance(of, (str, bytes)):
            self.budget.charge(4 * len(of) + _text_cost(of, function.__name__, args, kwargs))
        elif isinstance(of, (int, float)) or of is int:
            self.budget.charge(sum(abs(value) for value in args if isinstance(value, int)))
        elif of is not None:
            self.budget.weigh(of)


class _Charging(CodeGenerator):
    """Puts a charge at the beginning of every block: of loops, macros and branches."""

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        self.writeline(f"environment.budget.charge({_STEP + sum(map(_static_cost, nodes))})")
        super().blockvisit(nodes, frame)


class _Weighing(NodeTransformer):
    """Puts filters that charge around what Jinja lets nobody intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_weighed")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_weighed")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(each, "_weighed") for each in node.nodes]
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, "_weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_made") if isinstance(node.arg, nodes.Slice) else node


class _Generation(Extension):
    """`{% generation %}` shows transformers what to train on. To a prompt it makes no difference."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """As transformers has it: no attribute that Python itself might look for."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=...)` is possible
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Fields:
    """A formatter whose fields are charged."""

    _env: Any  # the sandbox

    def format_field(self, value: Any, spec: str) -> Any:
        self._env.budget.charge(_largest(spec))
        self._env.budget.weigh(value)
        return super().format_field(value, spec)  # type: ignore[misc]

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._env.budget.weigh(value)
        return super().convert_field(value, conversion)  # type: ignore[misc]


class _Formatter(_Fields, SandboxedFormatter):
    pass


class _EscapingFormatter(_Fields, SandboxedEscapeFormatter):
    pass


def _static_cost(node: nodes.Node) -> int:
    """What the text and the expressions of one statement cost, without those of the blocks inside it."""
    text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    cost = _NODE + (len(text) if isinstance(text, str) else 0)
    return cost + sum(_static_cost(child) for child in node.iter_child_nodes() if not isinstance(child, nodes.Stmt))


def _filtered(node: Any, name: str) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node  # `_static_cost` counts it
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no attribute that begins with '_', as {name!r} does")


@pass_context  # so that nothing is computed while the template is compiled
def _shown(context: Context, value: Any) -> Any:
    environment: Any = context.environment
    return environment._weighed(value)


def _is_lazy(value: Any) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        raise OverflowError(_TOO_LARGE)
    return value


def _check_power(base: int, exponent: int) -> None:
    if (base.bit_length() - 1) * exponent > 64:
        raise OverflowError(_TOO_LARGE)


def _repeated(value: Any, times: Any) -> int:
    if not isinstance(times, int) or not isinstance(value, (str, bytes, list, tuple)):
        return 0
    return len(value) * max(times, 0) * (1 if isinstance(value, (str, bytes)) else _ITEM)


def _largest(form: str) -> int:
    """The largest number in a format: a width or a precision."""
    return max((int(digits[:12]) for digits in re.findall(r"\d+", form)), default=0)


def _text_cost(text: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """What the method `name` of `text` costs beyond going through it and its arguments."""
    first: Any = args[0] if args else next(iter(kwargs.values()), None)
    if name == "expandtabs":
        tabs: int = text.count(_TAB[type(text)])
        return tabs * (_number(first) if first is not None else 8)
    if name in _WIDENING:
        return _number(first)
    if name == "join":
        return len(text) * (len(first) if hasattr(first, "__len__") else 0)
    if name == "translate":
        values = first.values() if isinstance(first, dict) else [first]
        return len(text) * max((len(value) for value in values if isinstance(value, (str, bytes))), default=1)
    return _search_cost(text, name, first, args[1] if len(args) > 1 else None)


def _search_cost(text: Any, name: str, searched: Any, other: Any) -> int:
    """Of methods that look for `searched` in `text`, or go by white space without it; the same for `_text_cost`."""
    found = text.count(searched) if isinstance(searched, (str, bytes)) and searched else len(text) // 2 + 1
    cost: int = _STEP * found if name in _PARTING else 0
    if name in _BACKWARDS and isinstance(searched, (str, bytes)):  # these compare with every place in full
        cost += len(text) * len(searched)
    if name == "replace" and isinstance(other, (str, bytes)):
        cost += (found if searched else len(text) + 1) * len(other)
    return cost


_WIDENING = ("center", "ljust", "rjust", "zfill")
_PARTING = ("split", "rsplit", "splitlines")
_BACKWARDS = ("rsplit", "rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip")
_TAB: dict[type, Any] = {str: "\t", Markup: "\t", bytes: b"\t"}


def _refuse(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _sum(environment: Sandbox, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's, adding by the operator that is charged."""
    for item in iterable if attribute is None else map(filters.make_attrgetter(environment, attribute), iterable):
        start = environment.call_binop(None, "+", start, item)
    return start


def _format_cost(budget: Budget, form: str | bytes, values: Any) -> int:
    """What `form % values` may cost: each field may be as long as its number says, or as all the values."""
    text = form if isinstance(form, str) else form.decode("latin-1")
    number = _largest(text)
    if "*" in text and isinstance(values, tuple):
        number += sum(abs(value) for value in values if isinstance(value, int))
    fields = text.count("%")
    for _ in range(fields):
        budget.weigh(values)
    return fields * number


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _indent_cost(_budget: Budget, of: dict[str, Any]) -> int:
    width = len(of["width"]) if isinstance(of["width"], str) else _number(of["width"])
    return (width + _STEP) * (1 + len(_text(of["s"]).splitlines()))


def _replace_cost(_budget: Budget, of: dict[str, Any]) -> int:
    return _text(of["s"]).count(_text(of["old"])) * len(_text(of["new"]))


def _trim_cost(_budget: Budget, of: dict[str, Any]) -> int:
    return len(_text(of["value"])) * len(of["chars"] or "")


def _join_cost(budget: Budget, of: dict[str, Any]) -> int:
    of["value"] = items = list(of["value"])
    budget.weigh(items)
    return len(_text(of["d"])) * len(items)


def _sort_cost(budget: Budget, of: dict[str, Any]) -> int:
    """Of what compares the items of its first argument, about a dozen times each."""
    name = next(each for each in ("value", "iterable", "seq") if each in of)
    if _is_lazy(of[name]):
        of[name] = list(of[name])
    for _ in range(16):
        budget.weigh(of[name])
    return 0


def _parsing_cost(_budget: Budget, of: dict[str, Any]) -> int:
    """Digits to a number: that takes the square of their count."""
    return len(of["value"]) ** 2 // _STEP if isinstance(of["value"], str) else 0


def _json_cost(_budget: Budget, of: dict[str, Any]) -> int:
    indent, separators = of["indent"], of["separators"] or ()
    if max(len(indent) if isinstance(indent, str) else _number(indent), *map(len, separators), 0) > 64:
        raise OverflowError("tojson takes indents and separators of at most 64 characters")
    return 0


_COSTS: dict[str, Callable[[Budget, dict[str, Any]], int]] = {
    "batch": lambda _, of: _STEP * _number(of["linecount"]),
    "center": lambda _, of: _number(of["width"]),
    "dictsort": _sort_cost,
    "filesizeformat": _parsing_cost,
    "float": _parsing_cost,
    "format": lambda budget, of: _format_cost(budget, _text(of["value"]), of["kwargs"] or of["args"]),
    "groupby": _sort_cost,
    "indent": _indent_cost,
    "int": _parsing_cost,
    "join": _join_cost,
    "max": _sort_cost,
    "min": _sort_cost,
    "replace": _replace_cost,
    "round": lambda _, of: _STEP * _number(of["precision"]),
    "slice": lambda _, of: _STEP * _number(of["slices"]),
    "sort": _sort_cost,
    "title": lambda _, of: _STEP * len(_text(of["s"])),
    "tojson": _json_cost,
    "trim": _trim_cost,
    "unique": _sort_cost,
    "urlencode": lambda _, of: _STEP // 2 * len(_text(of["value"])),
}
_FILTERS = {"sum": _sum, "tojson": _to_json}
