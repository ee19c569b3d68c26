"""Metrics of locks for Prometheus: examples/lock_metrics.rs in Python, with the same names and labels (but for redlock_waiting and
redlock_build_info, which it lacks). To copy; it needs `redlock` alone.

    metrics = LockMetrics({"shop:account": 10, "shop:import": 60})
    locks.observe(metrics.observe)

A server serves `metrics.text()` at /metrics, as `text/plain; version=0.0.4`. The label `lock` is a class of locks: `shop:account:17` is
counted under `shop:account`, and a name without a class under `other`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Mapping

from redlock import Event

SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
           2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
PARTS_OF_TTL = (0.05, 0.1, 0.2, 0.33, 0.5, 0.6, 0.67, 0.8, 0.9, 1.0)
FAMILIES = {
    "redlock_acquire_duration_seconds": ("histogram", "How long calls that acquire took"),
    "redlock_acquire_attempts_total": ("counter", "Attempts of calls that acquire"),
    "redlock_hold_duration_seconds": ("histogram", "How long locks were held"),
    "redlock_held": ("gauge", "Locks held now"),
    "redlock_lost_total": ("counter", "Locks found lost"),
    "redlock_extensions_total": ("counter", "Extensions and renewals"),
    "redlock_extension_slack_ratio": ("histogram", "What was left of the validity when a lock was extended, as a part of the ttl"),
    "redlock_endings_total": ("counter", "How locks ended"),
    "redlock_node_up": ("gauge", "Whether a node gives votes"),
    "redlock_node_outages_total": ("counter", "How often a node gave no votes"),
}


class LockMetrics:
    def __init__(self, classes: Mapping[str, float], nodes: list[str] | tuple[str, ...] = ()) -> None:
        """`classes`: the beginning of names, up to a colon or the end, and the ttl. `nodes`: their addresses, as events have them."""
        self._classes = dict(classes)
        self._values: dict[str, dict[str, float]] = {family: {} for family in FAMILIES}
        # Events arrive in several threads, and one in the middle of another where the collector ends a lock: a mutex that is waited
        # for would wait for its own thread.
        self._events: deque[Event] = deque()
        self._mutex = threading.Lock()
        # An alert sees the first loss only if there was a zero before.
        for lock in [*self._classes, "other"]:
            for reason in ("taken", "deleted", "expired", "hold_limit"):
                self._add("redlock_lost_total", 0, lock=lock, reason=reason)
        for node in nodes:
            self._set("redlock_node_up", 1, node=node)

    def observe(self, event: Event) -> None:
        """To be given to `Redlock.observe`."""
        self._events.append(event)
        while self._events and self._mutex.acquire(blocking=False):
            try:
                self._count_all()
            finally:
                self._mutex.release()

    def _count_all(self) -> None:
        while self._events:
            event = self._events.popleft()
            lock, why = self._class(event.name), event.why.replace(" ", "_")
            if event.kind in ("acquired", "not acquired"):
                self._measure("redlock_acquire_duration_seconds", SECONDS, event.seconds, lock=lock, result=why or "acquired")
                self._add("redlock_acquire_attempts_total", event.attempts, lock=lock)
            if event.kind == "acquired":
                self._add("redlock_held", 1, lock=lock)
            elif event.kind in ("extended", "not extended"):
                result = "extended" if event.kind == "extended" else "failed"
                self._add("redlock_extensions_total", 1, lock=lock, result=result)
                if lock in self._classes:
                    part = event.seconds / self._classes[lock]
                    self._measure("redlock_extension_slack_ratio", PARTS_OF_TTL, part, lock=lock)
            elif event.kind == "lost":
                self._add("redlock_lost_total", 1, lock=lock, reason=why)
            elif event.kind == "ended":
                self._add("redlock_held", -1, lock=lock)
                self._measure("redlock_hold_duration_seconds", SECONDS, event.seconds, lock=lock)
                self._add("redlock_endings_total", 1, lock=lock, how=why)
            elif event.kind in ("node away", "node back"):
                self._set("redlock_node_up", event.kind == "node back", node=event.name)
                self._add("redlock_node_outages_total", event.kind == "node away", node=event.name)

    def text(self) -> str:
        """For Prometheus, in its text format."""
        with self._mutex:
            self._count_all()
            lines = []
            for family, (kind, meaning) in FAMILIES.items():
                if self._values[family]:
                    lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}"]
                    lines += [f"{series} {value:.15g}" for series, value in self._values[family].items()]
        return "\n".join(lines) + "\n"

    def _class(self, name: str) -> str:
        fits = [one for one in self._classes if name == one or name.startswith(one + ":")]
        return max(fits, key=len, default="other")

    def _add(self, family: str, by: float, suffix: str = "", **labels: str) -> None:
        values = self._values[family]
        series = _series(family + suffix, labels)
        values[series] = values.get(series, 0) + by

    def _set(self, family: str, value: float, **labels: str) -> None:
        self._values[family][_series(family, labels)] = value

    def _measure(self, family: str, buckets: tuple[float, ...], value: float, **labels: str) -> None:
        for most in buckets:
            self._add(family, value <= most, "_bucket", **labels, le=f"{most:.5f}".rstrip("0").rstrip("."))
        self._add(family, 1, "_bucket", **labels, le="+Inf")
        self._add(family, value, "_sum", **labels)
        self._add(family, 1, "_count", **labels)


def _series(name: str, labels: Mapping[str, str]) -> str:
    escaped = {label: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for label, value in labels.items()}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in escaped.items()) + "}"
