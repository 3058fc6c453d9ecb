"""Figures for Prometheus. No prompts, and no names but those of drafters and routes."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..engine import Event, Finished, Started, Text

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The metrics of one server. `heard` may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"edgespec_{name}", about, labels, registry=self._registry)

        def histogram(name: str, about: str) -> Histogram:
            return Histogram(f"edgespec_{name}", about, registry=self._registry, buckets=_SECONDS)

        self._requests = counter("requests", "Requests by route and status", "route", "code")
        self._prompt = counter("prompt_tokens", "Tokens of prompts")
        self._cached = counter("cached_tokens", "Tokens of prompts that a cache held")
        self._tokens = counter("tokens", "Tokens of answers")
        self._passes = counter("passes", "Passes of the target in answers")
        self._time = counter("seconds", "Seconds of computation", "phase")
        self._drafted = counter("spec_draft_tokens", "Drafted tokens", "drafter")
        self._accepted = counter("spec_accepted_tokens", "Accepted tokens", "drafter")
        self._depth = counter("spec_accepted_per_position", "Accepted tokens by their place in a draft", "position")
        self._speedup = Gauge("edgespec_speedup", "Of the last answer against plain decoding", registry=self._registry)
        self._first = histogram("first_token_seconds", "Computation of a prompt")
        self._between = histogram("between_tokens_seconds", "Computation of a round by its tokens")

    def watch(self, busy: Callable[[], float], queued: Callable[[], float]) -> None:
        """Measure these whenever the metrics are read."""
        for name, about, value in (
            ("edgespec_slots_busy", "Slots with a request", busy),
            ("edgespec_queue_length", "Requests that wait", queued),
        ):
            Gauge(name, about, registry=self._registry).set_function(value)

    def answered(self, route: str, status: int) -> None:
        """Count a response."""
        self._requests.labels(route, str(status)).inc()

    def heard(self, event: Event) -> None:
        """Count an event of an answer."""
        match event:
            case Started(prompt, cached):
                self._prompt.inc(prompt)
                self._cached.inc(cached)
            case Text(_, tokens, round_) if tokens:
                self._tokens.inc(len(tokens))
                self._passes.inc()
                self._between.observe((round_.verify_seconds + round_.draft_seconds) / len(tokens))
            case Finished(_, stats):
                self._time.labels("prompt").inc(stats.prompt_seconds)
                self._time.labels("answer").inc(stats.seconds)
                self._first.observe(stats.prompt_seconds)
                for name, (drafted, accepted) in stats.by_drafter.items():
                    self._drafted.labels(name).inc(drafted)
                    self._accepted.labels(name).inc(accepted)
                for position, (_, accepted) in enumerate(stats.by_depth, 1):
                    self._depth.labels(str(position)).inc(accepted)
                if stats.speedup is not None:
                    self._speedup.set(stats.speedup)

    def text(self) -> bytes:
        """All of them in the format of Prometheus."""
        return generate_latest(self._registry)
