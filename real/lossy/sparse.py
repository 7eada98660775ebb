"""Experts that leave out channels of small activation, by a threshold for each expert.

The activation is that of gate, up or down. With ``S_t(a) = a where |a| >= t, else 0``, u = x W_up
and g = act(x W_gate):

- ``up``: (g * S_t(u)) W_down, FloE's choice (eq. 11);
- ``gate``: (S_t(g) * u) W_down, which is CATS;
- ``down``: S_t(g * u) W_down, which knows most, and knows it last.

The threshold of a sparsity k is the smallest value of a sample at or below which at least the share
k of the sample lies (FloE, eq. 6).

Source: Zhou et al., FloE, arXiv:2505.05950, section 3.2.1; Lee et al., CATS, arXiv:2404.08763.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from real.lossy.mixture import Forward
from real.store.experts import ModelForm, Tensors
from sim.values.units import part_of

WHERE = ("gate", "up", "down")


def require_gated(form: ModelForm) -> None:
    """Raise ValueError unless an expert is act(gate) * up, then down; tried on a few rows."""
    tensors = form.tensors(0)
    names = set(form.matrices(tensors))
    if names == {"gate", "up", "down"} and hasattr(form.layer.experts, "act_fn"):
        like = form.matrices(tensors)["up"]
        draw = torch.Generator().manual_seed(0)
        hidden = torch.randn(3, like.shape[1], generator=draw).to(like)
        own, ours = form.forward(tensors, hidden), sparse_output(form, tensors, hidden, "up", 0.0)
        tolerance = 8 * torch.finfo(like.dtype).eps * float(own.abs().max())
        if torch.allclose(own, ours, rtol=0, atol=tolerance):
            return
    raise ValueError(
        f"{form.layer.name}: {type(form.layer.experts).__name__} has {', '.join(sorted(names))};"
        " channels are left out of experts that are act(gate) * up, then down, and nothing else"
    )


def activations(form: ModelForm, tensors: Tensors, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """An expert's activations for rows [n, H], each [n, I].

    They are ``gate`` (after its function), ``up`` and their product ``down``.
    """
    matrices = form.matrices(tensors)
    gate = form.layer.experts.act_fn(functional.linear(hidden, matrices["gate"]))  # type: ignore[operator]
    up = functional.linear(hidden, matrices["up"])
    return {"gate": gate, "up": up, "down": gate * up}


def sparse_output(
    form: ModelForm, tensors: Tensors, hidden: torch.Tensor, where: str, threshold: float
) -> torch.Tensor:
    """An expert's output for rows [n, H] without channels of activation below the threshold."""
    found = activations(form, tensors, hidden)
    kept = found["down"] * (found[where].abs() >= threshold)
    return functional.linear(kept, form.matrices(tensors)["down"])


def sparse_forward(where: str, thresholds: torch.Tensor, *, decoded_only: bool = False) -> Forward:
    """A function for ``real.lossy.mixture``: every expert sparse, by ``thresholds`` [S, E].

    ``decoded_only``: gates of several rows (prompts) compute whole experts, as in systems that move
    whole experts there.
    """
    table: list[list[float]] = thresholds.tolist()

    def forward(
        form: ModelForm, expert: int, tensors: Tensors, hidden: torch.Tensor, rows: int
    ) -> torch.Tensor:
        if decoded_only and rows > 1:
            return form.forward(tensors, hidden)
        return sparse_output(form, tensors, hidden, where, table[form.layer.site][expert])

    return forward


class ActivationSample:
    """Magnitudes of experts' activations over a pass, from which thresholds are read.

    They are kept by site and expert. ``forward`` computes whole experts, and keeps the first
    ``most`` values or so of each expert and kind.
    """

    def __init__(self, most: int = 1 << 20) -> None:
        self._most = most
        self._seen: dict[tuple[int, int], dict[str, list[torch.Tensor]]] = {}
        self._count: dict[tuple[int, int], int] = {}

    def forward(
        self, form: ModelForm, expert: int, tensors: Tensors, hidden: torch.Tensor, rows: int
    ) -> torch.Tensor:
        place = (form.layer.site, expert)
        if self._count.get(place, 0) < self._most:
            seen = self._seen.setdefault(place, {name: [] for name in WHERE})
            for name, values in activations(form, tensors, hidden).items():
                seen[name].append(values.abs().float().flatten().cpu())
            self._count[place] = self._count.get(place, 0) + seen[WHERE[0]][-1].numel()
        return form.forward(tensors, hidden)

    def thresholds(
        self, sites: int, experts: int, sparsities: Sequence[float]
    ) -> Mapping[str, torch.Tensor]:
        """Thresholds [S, E, P] by ``gate``, ``up`` and ``down``.

        Experts that computed nothing get their site's values. Raise ValueError where a whole site
        computed nothing.
        """
        found = {name: torch.zeros(sites, experts, len(sparsities)) for name in WHERE}
        for site in range(sites):
            pooled = {
                name: [v for expert in range(experts) for v in self._of(site, expert, name)]
                for name in WHERE
            }
            for name in WHERE:
                if not pooled[name]:
                    raise ValueError(
                        f"site {site} computed no expert on these texts: no threshold can be fitted"
                    )
                for expert in range(experts):
                    sample = self._of(site, expert, name) or pooled[name]
                    found[name][site, expert] = quantiles(torch.cat(sample), sparsities)
        return found

    def _of(self, site: int, expert: int, name: str) -> list[torch.Tensor]:
        return self._seen.get((site, expert), {}).get(name, [])


def quantiles(sample: torch.Tensor, sparsities: Sequence[float]) -> torch.Tensor:
    """The smallest value of a sample at or below which at least each share of it lies, [P].

    Source: FloE, eq. 6.
    """
    ordered = sample.sort().values
    return ordered[[max(part_of(len(ordered), share, up=True), 1) - 1 for share in sparsities]]
