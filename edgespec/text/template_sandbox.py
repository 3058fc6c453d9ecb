"""Jinja for untrusted templates: a sandbox in which a rendering has a budget of time and memory.

Jinja's own sandbox keeps a template away from Python's internals, but `{{ 'a' * 10**10 }}` takes all memory, and nested
loops never end. Here every step of a rendering is charged to a `TemplateBudget` before it is executed, with an upper
bound of its cost: loops and macros by code that the compiler inserts at the beginning of each block; operators, calls,
filters and tests where Jinja lets them be intercepted; comparisons, concatenations and slices by filters around their
operands. Constant expressions, which Jinja would evaluate while it compiles, are evaluated while rendering. The budget
bounds memory, too: values are charged by their size, and freed values are not refunded.

The dialect is that of transformers' `apply_chat_template`, without the filters for HTML pages and random text.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_context, pass_environment
from markupsafe import Markup

from ..errors import TemplateError
from .template_budget import SIZED, STEP, TemplateBudget, exhausted
from .template_compiler import ChargingCompiler, ChargingTransformer
from .template_costs import COSTS, format_cost, is_lazy, largest, repeated, text_cost

#: The most characters of a template; those of known models have at most 20 000.
_LONGEST = 1 << 16
_DEEPEST = 100  # the deepest nesting of calls
_LARGEST = 1 << 64  # the greatest result of arithmetic
_TOO_LARGE = "a number has more than 64 bits"

#: Filters that make lists, test types or pass on items: they do not compare values nor convert them to text.
_STRUCTURAL = frozenset(
    (
        "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject",
        "rejectattr", "reverse", "select", "selectattr", "slice",
    )
)  # fmt: skip
_SPREADING = ("list", "batch", "slice", "sort", "unique", "sum")  # filters that split a text into characters
_TESTING = ("map", "reject", "rejectattr", "select", "selectattr")  # filters that may test many items per result
_PAGES = ("lipsum", "pprint", "random", "striptags", "urlize", "wordcount", "wordwrap", "xmlattr")
_COMPARING = (
    "divisibleby", "even", "odd", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt",
    "lessthan", "<=", "le", "in",
)  # fmt: skip
_WRITING = ("lower", "upper")


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment. `budget` is that of the current rendering; only one is possible at a time."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_shown,
        )
        self.budget = TemplateBudget()
        self.code_generator_class = ChargingCompiler
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
                f"the model's chat template has {len(source)} characters, but at most {_LONGEST} are allowed; "
                "use another file of this model, or give it a prompt (`complete`)"
            )
        self.budget = TemplateBudget(len(source))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about the code that Jinja generates
            return self.from_string(source)

    def names(self, source: str) -> set[str]:
        """The variables in `source`, a template that can be compiled."""
        return {node.name for node in self.parse(source).find_all(nodes.Name)}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        if operator == "+":
            if type(left) is str and type(right) is str:  # the most frequent case
                self.budget.charge(STEP + len(left) + len(right))
                return left + right
            self.budget.take(left)
            self.budget.take(right)
        elif operator == "*":
            self.budget.charge(max(repeated(left, right), repeated(right, left)))
        elif operator == "%" and isinstance(left, (str, bytes)):
            self.budget.charge(format_cost(self.budget, left, right))
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
            # An iterator may take long inside a single call.
            args = tuple(list(value) if is_lazy(value) else value for value in args)
            __self._weigh_call(__obj, args, kwargs)
        budget.depth += 1
        if budget.depth > _DEEPEST:
            raise exhausted()
        try:
            return __self._made(super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.depth -= 1

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):  # it will be hashed
            self.budget.weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """A replacement for a string's `format` or `format_map` that charges its fields; None for other values."""
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
        tree: nodes.Template = ChargingTransformer().visit(super()._parse(source, name, filename))
        return tree

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter or test `function`, with its cost charged before it runs, and its result afterwards."""
        skipped = int(hasattr(function, "jinja_pass_arg"))
        structural, cost = name in _STRUCTURAL, COSTS.get(name)
        signature = inspect.signature(function) if cost is not None else inspect.Signature()

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.charge()
            for value in (*args[skipped:], *kwargs.values()):
                (budget.take if structural else budget.weigh)(value)
            if isinstance(args[skipped], str if name in _SPREADING else SIZED if name in _TESTING else ()):
                budget.charge(STEP * len(args[skipped]))
            if cost is None:
                return self._made(function(*args, **kwargs))
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            budget.charge(cost(budget, bound.arguments))
            return self._made(function(*bound.args, **bound.kwargs))

        return guarded

    def _each(self, value: Any) -> Any:
        """The iterable of a loop, charged."""
        self.budget.take(value)
        return value

    def _weighed(self, value: Any) -> Any:
        self.budget.weigh(value)
        return value

    def _made(self, value: Any) -> Any:
        if isinstance(value, dict):
            self.budget.charge(STEP * len(value))
        self.budget.take(value)
        return self._counted(value) if is_lazy(value) else _bounded(value)

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.budget.charge()
            yield item

    def _now(self, form: str) -> str:
        self.budget.charge(256 * len(form))  # Python limits the result to this
        return datetime.datetime.now().strftime(form)

    def _weigh_call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.budget.weigh(value)
        of = function.__self__ if isinstance(function, BuiltinFunctionType) else None
        if isinstance(of, (str, bytes)):
            self.budget.charge(4 * len(of) + text_cost(of, function.__name__, args, kwargs))
        elif isinstance(of, (int, float)) or of is int:
            self.budget.charge(sum(abs(value) for value in args if isinstance(value, int)))
        elif of is not None:
            self.budget.weigh(of)


class _Generation(Extension):
    """`{% generation %}` marks text for training in transformers. It has no effect on a prompt."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """As in transformers, without attributes that Python itself may access."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # without `self`, so that `namespace(self=...)` is possible
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Fields:
    """A formatter that charges the cost of its fields."""

    _env: Any  # the sandbox

    def format_field(self, value: Any, spec: str) -> Any:
        self._env.budget.charge(largest(spec))
        self._env.budget.weigh(value)
        return super().format_field(value, spec)  # type: ignore[misc]

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._env.budget.weigh(value)
        return super().convert_field(value, conversion)  # type: ignore[misc]


class _Formatter(_Fields, SandboxedFormatter):
    pass


class _EscapingFormatter(_Fields, SandboxedEscapeFormatter):
    pass


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}, which begins with '_'")


@pass_context  # prevents evaluation while the template is compiled
def _shown(context: Context, value: Any) -> Any:
    environment: Any = context.environment
    return environment._weighed(value)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        raise OverflowError(_TOO_LARGE)
    return value


def _check_power(base: int, exponent: int) -> None:
    if (base.bit_length() - 1) * exponent > 64:
        raise OverflowError(_TOO_LARGE)


def _refuse(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers. Jinja's own `tojson` escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _sum(environment: Sandbox, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, with the charged operator for each addition."""
    for item in iterable if attribute is None else map(filters.make_attrgetter(environment, attribute), iterable):
        start = environment.call_binop(None, "+", start, item)
    return start


_FILTERS = {"sum": _sum, "tojson": _to_json}
