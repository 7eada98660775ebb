"""Names sites, gates, keys and times in sentences about a run."""

from __future__ import annotations

from collections.abc import Sequence

from sim.results.run_log import RunLog

SHOWN = 4
"""How many keys a list names before it only counts."""


def ms(duration_ns: int) -> str:
    """Nanoseconds as text in ms."""
    return f"{duration_ns / 1e6:.3f} ms"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


class Names:
    """Names sites, gates and keys; ``layers`` has each site's layer, if a trace tells it."""

    def __init__(self, run: RunLog, layers: Sequence[int] | None) -> None:
        self._run, self._layers = run, layers

    def site(self, site: int) -> str:
        if site >= self._run.own_sites:
            return f"draft layer {site - self._run.own_sites + 1} (site {site})"
        if self._layers is None:
            return f"site {site}"
        layer = self._layers[site]
        return f"layer {layer}" if layer == site else f"layer {layer} (site {site})"

    def gate(self, tick: int) -> str:
        if not self._run.is_gate(tick):
            return f"tick {tick}" if tick >= 0 else "the start"
        step, site, _ = self._run.gate(tick)
        return f"tick {tick} (step {step}, {self.site(site)})"

    def key(self, key: int) -> str:
        """``layer 3 expert 5``, with its precision where several are in play."""
        run = self._run
        precision, site, unit = key // run.plane, key // run.units % run.sites, key % run.units
        if unit == run.experts:
            requests = (run.config.get("workload") or {}).get("requests")
            return f"the {'dense block' if requests is None else 'keys and values'} of {self.site(site)}"
        names = run.precision_names
        which = (
            f" {names.get(precision, f'at precision {precision}')}"
            if len(names) > 1 or precision
            else ""
        )
        return f"{self.site(site)} expert {unit}{which}"

    def keys(self, keys: Sequence[int]) -> str:
        shown = ", ".join(self.key(key) for key in keys[:SHOWN])
        return shown + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
