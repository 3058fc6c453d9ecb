"""Chat templates: hostile ones, which take time or memory without end, and broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import edgespec
from edgespec import Device

from ...checkpoints import CHATML
from .. import spoil
from ..place import Place

_MESSAGES = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "So?"},
]
_NESTED = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcde") + "{% endfor %}" * 5

_OFTEN = "{% for i in range(60) %}{% set n.s = f(n.s) %}{% endfor %}"

#: Templates that ate memory or never ended, or raised what was no error of edgespec's.
HOSTILE: tuple[str, ...] = (
    "{{ 'a' * 10**10 }}",
    "{{ ['a'] * 10**9 }}",
    "{{ [0] * 10**9 }}",
    "{{ (0,) * 10**9 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 7 ** 999999999 }}",
    "{{ 2 ** (2 ** 40) }}",
    "{{ 1 << 10**12 }}",
    _NESTED,
    f"{_NESTED}x",
    "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(s) %}{{ s ~ s }}{% endmacro %}{% set n = namespace(s=1) %}" + _OFTEN,
    "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.zfill(10**10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (2147483647, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ [1] | slice(10**9) | list | length }}",
    "{{ [1] | batch(10**9, 0) | list | length }}",
    "{{ range(10**9) | list | length }}",
    "{{ range(99999) | map('string') | join('a' * 99999) }}",
    "{{ ('a' * 99999).replace('a', 'a' * 99999) }}",
    "{{ ('a' * 99999) | replace('a', 'a' * 99999) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ ('a\n' * 99999) | indent(99999) }}",
    "{{ ('a ' * 99999) | wordwrap(1, wrapstring='a' * 99999) }}",
    "{{ lipsum(n=10**6) }}",
    "{{ 'a'.join(['a' * 99999] * 99999) }}",
    "{{ ('\t' * 99999).expandtabs(10**6) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ strftime_now('%Y' * 10**8) }}",
    "{% for x in cycler(1, 2) %}{% endfor %}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' | urlize(10**9) }}",
    "{{ ('(' * 99999 ~ 'a' * 99999) | striptags }}",
    "{{ ('<' * 99999) | striptags }}",
    "{{ ('a' * 99999) | title | wordcount }}",
    "{{ dict(a=range(99999) | list) | xmlattr }}",
    "{{ [[1] * 9999] * 9999 | sum(start=[]) }}",
    "{{ messages.append(1) }}",
    "{% break %}",
    "{% continue %}",
    "{{",
    "{% if %}",
    "{% for %}",
    "{{ 1/0 }}",
    "{{ 1 % 0 }}",
    "{{ 1 if }}",
    "{{ '\ud800' }}",
    "{{ '\ufdd0' }}",
    "{{ messages[99].content }}",
    "{{ messages[0].content.nothing.more }}",
    "{{ raise_exception('\x1b]0;title\x07') }}",
    "{{ raise_exception('first\nsecond') }}",
    "{{ raise_exception('') }}",
    "{{ raise_exception(5) }}",
    "{{ raise_exception() }}",
    "{{ raise_exception('a' * 99999) }}",
    "{{ strftime_now('\0') }}",
    "{{ strftime_now(5) }}",
    "{{ strftime_now('%') }}",
    "{{ messages | tojson('x') }}",
    "{{ raise_exception | tojson }}",
    "{{ int('9' * 5000) }}",
    "{{ ('9' * 5000) | int }}",
    "{{ '9' | int(base=99) }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% generation %}x{% endgeneration %}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ x | nosuchfilter }}",
    "{{ nosuchfunction() }}",
    "{{ " + "(" * 500 + ")" * 500 + " }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{" * 3000,
    "{{ " + "-" * 5000 + "1 }}",
    "{{ " + "1+" * 5000 + "1 }}",
    "{% if a %}" * 300 + "{% endif %}" * 300,
    "{{ '" + "a" * 1_000_000 + "' }}",
    "{{ 1.__add__ }}",
    "{% set ns = namespace() %}{{ ns.x.y }}",
    "{{ ' ' * 99999999 }}",
    "\0",
    "\x1b]0;title\x07",
    "",
    " ",
)  # fmt: skip


def _render(place: Place, template: str, messages: Sequence[Mapping[str, Any]] = _MESSAGES) -> None:
    """The prompt of `messages` by `template`, and an answer to it."""
    with edgespec.load(place.models.gguf("qwen2"), device=Device(threads=1)) as runtime:
        runtime.vocabulary.template = template
        place.attempt(lambda: runtime.prompt(messages))
        place.attempt(lambda: list(runtime.chat(messages, max_tokens=2)))


def _hostile(template: str) -> Callable[[Place], None]:
    return lambda place: _render(place, template)


CORPUS: Mapping[str, Callable[[Place], object]] = {
    f"{i}: {text[:80]}": _hostile(text) for i, text in enumerate(HOSTILE)
}

_NUMBERS = ("0", "1", "-1", "99999", "10**9", "10**18", "2**31", "1.5", "none", "'a'")
_VALUES = (
    "'a'", "messages", "messages[0]", "messages[0].content", "range(99999)", "[1, 2]", "none", "x", "1", "bos_token",
    "'%s' % 1", "namespace(a=1)", "loop", "true", "{'a': 1}", "('a' * 999)", "strftime_now", "tools",
)  # fmt: skip
_FILTERS = (
    "length", "list", "join", "upper", "trim", "tojson", "center(N)", "indent(N)", "slice(N) | list", "batch(N) | list",
    "replace('a', V)", "format(V)", "map('upper') | list", "select | list", "sort", "reverse", "unique | list", "min",
    "string", "int", "float", "truncate(N)", "wordwrap(N)", "default(V)", "first", "last", "random", "sum",
    "pprint", "items | list", "attr('x')", "round(N)", "filesizeformat", "dictsort", "abs", "urlencode", "e", "max",
    "selectattr('role', 'equalto', V) | list", "count",
)  # fmt: skip
_MEMBERS = ("content", "role", "x", "split()", "strip()", "join(messages)", "items()", "upper()")
_OPERATORS = ("+", "-", "*", "**", "/", "//", "%", "~", "in", "<", "and", "==")


def play(rng: Random, place: Place) -> None:
    """A template put together at random, or a real one spoilt."""
    template = _spoilt(rng) if rng.random() < 0.4 else _block(rng, 3)
    messages: list[dict[str, Any]] = [dict(each) for each in _MESSAGES]
    if rng.random() < 0.3:
        rng.choice(messages)["content"] = rng.choice(spoil.TEXTS)
    place.note(f"{template!r:.400}")
    _render(place, template, messages)


def _spoilt(rng: Random) -> str:
    old = rng.choice((CHATML, rng.choice(HOSTILE)[:5000]))
    at = rng.randrange(len(old) + 1)
    pieces = ("{{ " + _value(rng, 2) + " }}", "{%", "%}", "{{", "}}", "-", "'", "{#", rng.choice(spoil.TEXTS)[:500])
    return old[:at] + rng.choice(pieces) + old[at + rng.choice((0, 0, 1, 10)) :]


def _value(rng: Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice((rng.choice(_VALUES), rng.choice(_NUMBERS)))
    one, other, number = _value(rng, depth - 1), _value(rng, depth - 1), rng.choice(_NUMBERS)
    filtered = f"({one} | {rng.choice(_FILTERS).replace('N', number).replace('V', other)})"
    forms = (
        filtered,
        filtered,
        filtered,
        f"({one} {rng.choice(_OPERATORS)} {other})",
        f"{one}[{rng.choice((number, ':' + number, '::' + number, other))}]",
        f"({one}).{rng.choice(_MEMBERS)}",
        f"({one} if {other} else {number})",
        f"[{one}, {other}]",
    )
    return rng.choice(forms)


def _block(rng: Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(("x", "{{ " + _value(rng, 2) + " }}", "\n", ""))
    inner = "".join(_block(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    forms = (
        f"{{% for a in {_value(rng, 1)} %}}{inner}{{% endfor %}}",
        f"{{% for m in messages %}}{inner}{{{{ m.content }}}}{{% endfor %}}",
        f"{{% if {_value(rng, 2)} %}}{inner}{{% else %}}{inner}{{% endif %}}",
        f"{{% set x = {_value(rng, 2)} %}}{inner}",
        f"{{% macro x(a) %}}{inner}{{% endmacro %}}{{{{ x(1) }}}}",
        f"{{% filter upper %}}{inner}{{% endfilter %}}",
        inner,
    )
    return rng.choice(forms)
