"""Templates that would take all memory, or never end, are ended; those of real chats are not."""

from __future__ import annotations

import threading

import pytest

from edgespec.backends.toy import Bytes
from edgespec.errors import Interrupted, TemplateError
from edgespec.text import template_budget as budget
from edgespec.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "x"}]


class Carries(Bytes):
    """The bytes, with a template of one's own."""

    def __init__(self, template: str) -> None:
        self.template = template


def doubled(step: str, use: str, start: str = "[1]") -> str:
    """A template that takes `step` sixty times over `ns.s` and `ns.t`, and then does `use`."""
    return (
        f"{{% set ns = namespace(s={start}, t={start}) %}}{{% for i in range(60) %}}"
        + "".join(f"{{% set ns.{name} = {step.replace('?', f'ns.{name}')} %}}" for name in "st")
        + f"{{% endfor %}}{use}"
    )


def for_ever(body: str) -> str:
    """A template that does `body` ten thousand million times."""
    return (
        "{% set ns = namespace(l=[]) %}{% set s = 'a' * 9999 %}{% set d = {}.fromkeys(range(9)) %}"
        f"{{% for i in range(99999) %}}{{% for j in range(99999) %}}{body}{{% endfor %}}{{% endfor %}}"
    )


LISTS = "[?, ?]"
ONCE = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{% set x = [0] * 10**9 %}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.encode().zfill(10**10) }}",
    "{{ ('\t' * 999).expandtabs(10**9) }}",
    "{{ ('\t' * 999).expandtabs(tabsize=10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' | format(1.0) }}",
    "{{ ('%(a)s' * 9999) % {'a': 'b' * 99999} }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ '{:{w}}'.format('x', w='>1000000000') }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "{{ ('{0.items}' * 9999).format(cycler('a' * 99999)) }}",
    "{{ [1] | slice(10**9) | list }}",
    "{% for x in [1] | slice(10**9) %}{% endfor %}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ range(99999) | join('a' * 99999) }}",
    "{{ ('a' * 99999).join(range(9999) | map('string')) }}",
    "{{ ('\n' * 9999) | indent(99999999, true, true) }}",
    "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
    "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ ('a' * 30000).rfind('b' + 'a' * 15000) }}",
    "{{ ('a' * 30000 | safe).rfind('b' + 'a' * 15000) }}",
    "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "{{ ('a' * 30000).strip('b' * 10000 + 'a') }}",
    "{{ ('a' * 30000) | trim('b' * 10000 + 'a') }}",
    "{{ ('ab ' * 30000).split() | length }}",
    "{{ ('ab' * 30000) | list | length }}",
    "{{ ([[1] * 10] * 9999) | sum(start=[]) | length }}",
    "{{ 5 | round(-1000000000) }}",
    "{{ 5 | round(1000000000, 'ceil') }}",
    "{{ ('9' * 30000) | int }}",
    "{{ ('9' * 30000) | float }}",
    "{{ [1] | tojson(indent=10**9) }}",
    "{{ ([1] * 9999) | tojson(separators=('a' * 99999, ':')) }}",
    "{{ strftime_now('%Y' * 99999) }}",
    "{% autoescape 'a' | center(10**10) %}{% endautoescape %}",
    "{% autoescape true %}{{ ('<' | e) * 10**10 }}{% endautoescape %}",
    "{% filter replace('', 'a' * 99999) %}{{ 'x' * 9999 }}{% endfilter %}",
    "{{ 10 ** 10 ** 9 }}",
    "{{ 9 ** 999999999 }}",
    "{{ 2 ** 64 }}",
    "{{ lipsum(10**7) }}",
    doubled("? * ?", "{{ ns.s }}", "10"),
    doubled("? + ?", "", "'a'"),
    doubled("? ~ ?", "", "'a'"),
    doubled("? + ?", ""),
    doubled(LISTS, "{{ ns.s }}"),
    doubled(LISTS, "{{ ns }}"),
    doubled(LISTS, "{{ ns.s | tojson }}"),
    doubled(LISTS, "{{ ns.s | upper }}"),
    doubled(LISTS, "{{ ns.s == ns.t }}"),
    doubled(LISTS, "{{ ns.s in [ns.t] }}"),
    doubled(LISTS, "{{ ns.s is in([ns.t]) }}"),
    doubled(LISTS, "{{ [ns.s].count(ns.t) }}"),
    doubled(LISTS, "{{ 'a' ~ ns.s }}"),
    doubled(LISTS, "{{ '%s' % [ns.s] }}"),
    doubled(LISTS, "{{ '{}'.format(ns.s) }}"),
    doubled(LISTS, "{{ {'a': ns.s}.items() }}"),
    doubled(LISTS, "{{ [[ns.s], [ns.t]] | sort }}"),
    doubled(LISTS, "{{ [{'a': ns.s}] | map(attribute='a') | join }}"),
    doubled(LISTS, "{% for i in [1, 2] %}{{ loop.changed(ns.s if loop.first else ns.t) }}{% endfor %}"),
    doubled("(?, ?)", "{{ {ns.s: 1} | length }}", "(1,)"),
    doubled("(?, ?)", "{{ {}[ns.s] }}", "(1,)"),
    doubled("(?, ?)", "{{ dict([(ns.s, 1)]) | length }}", "(1,)"),
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for x in [[1]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 20 + "x" + "{% endcall %}" * 20,
]
AGAIN = [
    "",
    "x",
    "{% for k in range(99999) if false %}{% endfor %}",
    "{% for k in range(99999) | map('string') | map('upper') %}{% endfor %}",
    "{% set x = range(99999) | select('string') | first %}",
    "{% set x = range(99999) | selectattr('a') | list %}",
    "{% set x = range(99999) | sort %}",
    "{% set x = d.fromkeys(range(99999)) %}",
    "{% set x = 'b' in s %}",
    "{% set x = s[1:] %}",
    "{% set x = s.count('b') %}",
    "{% set x = s == s ~ 'a' %}",
    "{% set ns.l = [ns.l, [1, 1, 1, 1], {}, namespace()] %}",
    "{% set ns.l = [ns.l, '" + "a" * 9999 + "' ~ i] %}",
    "{% set x %}" + "a" * 9999 + "{{ i }}{% endset %}{% set ns.l = [ns.l, x] %}",
    "{% set ns.l = [ns.l, [" + "1," * 999 + "]] %}",
    "{% set ns.l = [ns.l, []] %}" * 99,
    "{% macro a() %}{% endmacro %}{% set ns.l = [ns.l, a] %}",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thirty-second part of the budget, so that the tests are quick."""
    monkeypatch.setattr(budget, "_BASE", budget._BASE // 32)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("template", [*ONCE, *map(for_ever, AGAIN)])
def test_a_template_without_end_or_measure_is_ended(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(Carries(template)).render(MESSAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", ["{{ 'x' | urlize }}", "{{ '<' | striptags }}", "{{ [1] | random }}"])
def test_filters_for_pages_and_chance_are_not_there(template: str) -> None:
    with pytest.raises(TemplateError, match="No filter"):
        ChatTemplate(Carries(template))


@pytest.mark.parametrize("name", ["__class__", "_a"])
def test_a_namespace_takes_no_names_of_python_s(name: str) -> None:
    for template in (f"{{{{ namespace({name}=1) }}}}", f"{{% set ns = namespace() %}}{{% set ns.{name} = 1 %}}"):
        with pytest.raises(TemplateError, match="begins with '_'"):
            ChatTemplate(Carries(template)).render(MESSAGES)


def test_a_prompt_far_longer_than_its_messages_is_refused() -> None:
    """Not the rendering would take the memory then, but the tokenizer: hundreds of bytes for each character."""
    with pytest.raises(TemplateError, match="makes a prompt of 1000000 characters"):
        ChatTemplate(Carries("{{ 'a' * 1000000 }}")).render(MESSAGES)
    assert len(ChatTemplate(Carries("{{ 'a' * 200000 }}")).render(MESSAGES)) == 200000
    message = {"role": "user", "content": "x" * 200000}
    assert len(ChatTemplate(Carries("{{ messages[0].content * 5 }}")).render([message])) == 1000000


#: What real ones do to each message, and more than any of them does.
BUSY = (
    "{% macro shown(m) %}{{ m.role }}:{{ m.content | trim }}{% endmacro %}{% set ns = namespace(text='', n=0) %}"
    "{% for m in messages %}{% if '</think>' in m.content %}{% set c = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{% else %}{% set c = m.content %}{% endif %}"
    "{% for w in c.split('\n') %}{% set ns.n = ns.n + w | length %}{% endfor %}"
    "{% if m.role != 'system' and c | trim and messages[0] != m %}"
    "{{ shown(m) }}{{ m | tojson }}{{ c[1:] ~ '\n' }}{% endif %}"
    "{% endfor %}{{ ns.n }}"
)


@pytest.mark.parametrize(("count", "length"), [(1, 1), (3, 400_000), (300, 1000), (4000, 20)])
def test_long_chats_are_within_the_budget(count: int, length: int) -> None:
    text = ("word " * length)[:length]
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {text}"} for i in range(count)]
    assert len(ChatTemplate(Carries(BUSY)).render(messages)) >= (count - 1) * length


def test_a_rendering_is_given_up_when_asked() -> None:
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(Interrupted):
        ChatTemplate(Carries(for_ever("x"))).tokens(MESSAGES, stop)
    assert len(asked) == 4


def test_two_threads_have_a_budget_each() -> None:
    template = ChatTemplate(Carries("{% for i in range(2000) %}{{ messages[0].content }}{% endfor %}"))
    found: dict[str, str] = {}

    def render(name: str) -> None:
        found[name] = template.render([{"role": "user", "content": name}])

    threads = [threading.Thread(target=render, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: name * 2000 for name in "abcd"}
