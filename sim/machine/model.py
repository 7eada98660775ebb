"""A Mixture-of-Experts model as sizes, without weights: parameters, bytes, key-value cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from sim.machine.attention import LatentAttention
from sim.machine.precision import AS_STORED, PRECISIONS, PROJECTIONS
from sim.values.units import require_flag, require_number

MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Model:
    """The sizes of a transformer with experts in ``sites`` of its layers.

    Such a layer has attention, a router, ``experts`` and maybe shared experts.

    - An expert has ``expert_matrices`` matrices of hidden x ``expert_intermediate``, and
      ``expert_biases`` parameters beside them, which never have fewer than 16 bits.
    - With ``fused_gate`` an expert's gate and up projection are one tensor: they are read as one,
      and kernels wait for both.
    - ``shared_intermediate`` is the width of all shared experts together: those that every token
      runs.
    - Layers without experts have a feed-forward block of ``dense_intermediate``.
      ``leading_dense_layers`` of them stand before the first site, ``dense_layers_per_site`` before
      every site.
    - The first ``encoder_sites`` sites are an encoder's. The layers of the other sites then have
      cross-attention, too.
    - The last ``draft_sites`` are layers that draft tokens, of a run that offloads their experts.
    - ``other_layer_params``, ``other_site_params`` and ``other_params`` count what else each layer,
      a site (once, whatever layers it has) and the model have: biases, norms of queries and keys,
      gates of shared experts. Below 0 is a layer that lacks its two norms, or one of them.
    - The last ``null_experts`` of ``experts`` compute nothing. They have no weights and are never a
      need.
    - ``gates_of`` and ``sizes_of`` are given for a transplant: they name the model whose gates are
      replayed and the model whose sizes these are.
    - ``whole`` has the sites, experts and top-k of the published model with these sizes. It is None
      where they are not known (``sim.setup.whole`` looks them up in ``conf/model``).
    - ``windows`` says to how many of the last tokens each layer attends, 0 for all of them. It is
      repeated over the layers of the model; layers that draft are like the last one.
    - ``stored`` is the precision of the published weights: an expert served in it has lost nothing.
      It matters where it is none of ``AS_STORED``.
    """

    name: str
    sites: int
    experts: int
    top_k: int
    hidden: int
    expert_intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    source: str
    expert_matrices: int = 3
    expert_biases: int = 0
    shared_intermediate: int = 0
    leading_dense_layers: int = 0
    dense_layers_per_site: int = 0
    dense_intermediate: int = 0
    encoder_sites: int = 0
    latent: LatentAttention | None = None
    other_site_params: int = 0
    other_params: int = 0
    dense_bits: float = 16.0
    kv_bits: float = 16.0
    tied_embeddings: bool = False
    null_experts: int = 0
    gates_of: str | None = None
    sizes_of: str | None = None
    stored: str = AS_STORED[1]
    whole: tuple[int, int, int] | None = None
    draft_sites: int = 0
    fused_gate: bool = False
    windows: tuple[int, ...] = ()
    other_layer_params: int = 0

    def __post_init__(self) -> None:
        for name in (
            "sites",
            "experts",
            "top_k",
            "hidden",
            "expert_intermediate",
            "heads",
            "kv_heads",
            "head_dim",
            "vocab",
            "expert_matrices",
        ):
            require_number(f"model.{name}", getattr(self, name), minimum=1, whole=True)
        for name in (
            "expert_biases",
            "shared_intermediate",
            "leading_dense_layers",
            "dense_layers_per_site",
            "dense_intermediate",
            "encoder_sites",
            "other_site_params",
            "other_params",
            "null_experts",
            "draft_sites",
        ):
            require_number(f"model.{name}", getattr(self, name), whole=True)
        require_number(
            "model.other_layer_params",
            self.other_layer_params,
            minimum=-2 * self.hidden,
            whole=True,
        )
        for name in ("dense_bits", "kv_bits"):
            require_number(f"model.{name}", getattr(self, name), minimum=1)
        require_flag("model.tied_embeddings", self.tied_embeddings)
        require_flag("model.fused_gate", self.fused_gate)
        if self.fused_gate and self.expert_matrices != 3:
            raise ValueError(
                f"model.fused_gate=true needs experts of three matrices, those of {self.name} have"
                f" {self.expert_matrices}"
            )
        if self.top_k > self.experts:
            raise ValueError(f"model.top_k={self.top_k} exceeds model.experts={self.experts}")
        if self.null_experts >= self.experts:
            raise ValueError(
                f"model.null_experts={self.null_experts} must be below"
                f" model.experts={self.experts}, which counts them"
            )
        self._check_whole()
        if self.latent is not None and not isinstance(self.latent, LatentAttention):
            raise ValueError(
                f"model.latent={self.latent!r} must be null or a section with its _target_"
            )
        self._check_layers()
        self._check_windows()
        if (self.gates_of is None) != (self.sizes_of is None):
            raise ValueError(
                f"model {self.name}: give both gates_of and sizes_of (a transplant), or neither"
            )
        if self.stored not in PRECISIONS:
            raise ValueError(
                f"model.stored={self.stored!r} is no precision; known: {', '.join(PRECISIONS)}"
            )

    def _check_layers(self) -> None:
        layers = self.leading_dense_layers + self.sites * (1 + self.dense_layers_per_site)
        if layers > MOST_LAYERS:
            raise ValueError(
                f"model {self.name}: sites={self.sites},"
                f" leading_dense_layers={self.leading_dense_layers} and"
                f" dense_layers_per_site={self.dense_layers_per_site} make {layers} layers, and at"
                f" most {MOST_LAYERS} are simulated"
            )
        without_experts = self.leading_dense_layers + self.dense_layers_per_site
        if bool(without_experts) != bool(self.dense_intermediate):
            raise ValueError(
                f"model {self.name}: {without_experts} layers without experts"
                f" (leading_dense_layers={self.leading_dense_layers},"
                f" dense_layers_per_site={self.dense_layers_per_site}) and"
                f" dense_intermediate={self.dense_intermediate} must be both given or both 0"
            )
        if self.encoder_sites >= self.sites:
            raise ValueError(
                f"model.encoder_sites={self.encoder_sites} must be below model.sites={self.sites}:"
                " the rest decode"
            )
        if self.encoder_sites and (self.leading_dense_layers or self.latent is not None):
            raise ValueError(
                f"model {self.name}: leading_dense_layers={self.leading_dense_layers} and"
                f" latent={self.latent} do not go with encoder_sites={self.encoder_sites}; use"
                " dense_layers_per_site"
            )

    def _check_whole(self) -> None:
        if self.whole is None:
            return
        if not isinstance(self.whole, Sequence) or len(self.whole) != 3:
            raise ValueError(
                f"model.whole={self.whole!r} must be null, or sites, experts and top_k of the"
                " published model; it is looked up where it is null"
            )
        for number in self.whole:
            require_number("model.whole", number, minimum=1, whole=True)

    def _check_windows(self) -> None:
        # A list in a file, and a tuple here: a model is compared and may be a key.
        object.__setattr__(self, "windows", tuple(self.windows))
        for window in self.windows:
            require_number("model.windows", window, whole=True)
        if self.encoder_sites and any(self.windows):
            raise ValueError(
                f"model {self.name}: windows={list(self.windows)} do not go with"
                f" encoder_sites={self.encoder_sites}; set model.windows=[]"
            )

    @property
    def transplant(self) -> str | None:
        """The label that every table and figure of a transplant carries."""
        if self.gates_of is None:
            return None
        if self.whole is None:
            told = ["how many layers that has is not known"]
        else:
            told = self._differences
        return ", ".join(
            [f"TRANSPLANTED: gates of {self.gates_of}", f"sizes of {self.sizes_of}", *told]
        )

    @property
    def part(self) -> str | None:
        """The label of a model with other layers or experts than the published one of its name.

        None for a transplant, and where nothing differs.
        """
        if self.gates_of is not None or not self._differences:
            return None
        return f"NOT the whole of {self.name}: {', '.join(self._differences)}"

    @property
    def _differences(self) -> list[str]:
        """How the layers and experts differ from those in ``whole``, in words."""
        sites, experts, top_k = self.whole or (self.own_sites, self.experts, self.top_k)
        layers, own = "MoE layers" if self.dense_intermediate else "layers", self.own_sites
        return [
            *([f"{own} of its {sites} {layers}"] if own < sites else []),
            *([f"{own} {layers} for its {sites}"] if own > sites else []),
            *(
                [f"{self.experts} experts a layer for its {experts}"]
                if self.experts != experts
                else []
            ),
            *([f"top-{self.top_k} for its top-{top_k}"] if self.top_k != top_k else []),
        ]

    @property
    def own_sites(self) -> int:
        """The sites of the model itself, without those of layers that draft tokens."""
        return self.sites - self.draft_sites

    def with_drafts(self, layers: int) -> Model:
        """This model with so many layers like its last one that draft tokens."""
        return replace(self, sites=self.own_sites + layers, draft_sites=layers)

    def keeps(self, precision: str) -> bool:
        """Whether weights served at ``precision`` have lost nothing."""
        return precision in (*AS_STORED, self.stored)

    # ---- experts

    @property
    def stored_experts(self) -> int:
        """How many experts of a site have weights."""
        return self.experts - self.null_experts

    @property
    def expert_params(self) -> int:
        return self.expert_matrices * self.hidden * self.expert_intermediate + self.expert_biases

    def expert_bytes(self, precision: str) -> int:
        """The bytes of one expert that a slot holds, and that a load moves at most."""
        return ceil(self._expert_bits(precision, resident=False) / 8)

    def resident_bytes(self, precision: str) -> int:
        """The bytes of one expert that always are on the device, outside the slots."""
        return ceil(self._expert_bits(precision, resident=True) / 8)

    def _expert_bits(self, name: str, *, resident: bool) -> float:
        if name not in PRECISIONS:
            raise ValueError(f"unknown precision {name!r}; known: {', '.join(PRECISIONS)}")
        precision, matrices = PRECISIONS[name], self.expert_matrices
        params = self.expert_params - self.expert_biases
        biases = 0.0 if resident else self.expert_biases * max(16.0, precision.down)
        if precision.is_uniform:
            return 0.0 if resident else params * precision.gate + biases
        if matrices not in (2, 3) or (precision.resident and matrices != 3):
            raise ValueError(
                f"precision {name} has bits for {', '.join(PROJECTIONS)}, but an expert of model"
                f" {self.name} has {matrices} matrices; choose precision=fp16 or another one that"
                " is the same for all"
            )
        return params / matrices * precision.bits(matrices, resident=resident) + biases

    def projection_bytes(self, name: str) -> tuple[int, ...]:
        """The bytes of each projection that moves, in the order in which kernels take them.

        Biases are not among them: they come with the last one (`sim.machine.lanes`). A fused gate
        is one with the up projection, where both move.
        """
        precision, matrices = PRECISIONS[name], self.expert_matrices
        params = (self.expert_params - self.expert_biases) // matrices
        moving = [p for p in PROJECTIONS[-matrices:] if p not in precision.resident]
        sizes = tuple(ceil(params * float(getattr(precision, p)) / 8) for p in moving)
        if self.fused_gate and moving[:2] == ["gate", "up"]:
            return sizes[0] + sizes[1], *sizes[2:]
        return sizes

    # ---- everything else

    @property
    def attention_params(self) -> int:
        """The parameters of one attention: its projections."""
        if self.latent is not None:
            return self.latent.params(self.hidden, self.heads)
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    def attention_flops(self, pairs: float, earlier: int) -> float:
        """The operations of one layer's attention, as `LatentAttention.flops` has them of a head."""
        if self.latent is not None:
            return self.heads * self.latent.flops(pairs, earlier)
        return 4 * self.heads * self.head_dim * pairs

    @property
    def attention_width(self) -> int:
        """How many values the queries and the keys of one row have."""
        if self.latent is not None:
            return (self.heads + 1) * (self.latent.kv_rank + self.latent.rope_dim)
        return (self.heads + self.kv_heads) * self.head_dim

    @property
    def cross_kv_params(self) -> int:
        """The parameters of a decoder layer's cross-attention that run over the prompt once.

        0 where there is no encoder.
        """
        return self.hidden * self.head_dim * 2 * self.kv_heads if self.encoder_sites else 0

    def is_encoder(self, site: int) -> bool:
        return site < self.encoder_sites

    def layers_at(self, site: int) -> int:
        """How many layers belong to a site: its own, and those without experts before it."""
        return 1 + self.dense_layers_per_site + (self.leading_dense_layers if site == 0 else 0)

    def windows_at(self, site: int) -> tuple[int, ...]:
        """To how many tokens each layer of a site attends, 0 for all of them."""
        count = self.layers_at(site)
        if not self.windows:
            return (0,) * count
        own = min(site, self.own_sites - 1)
        end = self.leading_dense_layers + (own + 1) * (1 + self.dense_layers_per_site)
        return tuple(self.windows[n % len(self.windows)] for n in range(end - count, end))

    def block_params(self, site: int) -> int:
        """The parameters of a site's dense block: all of its layers but the routed experts."""
        crosses = self.encoder_sites > 0 and not self.is_encoder(site)
        layer = (
            self.attention_params * (1 + crosses)
            + (2 + crosses) * self.hidden
            + self.other_layer_params
        )
        dense = self.expert_matrices * self.hidden * self.dense_intermediate
        shared = self.expert_matrices * self.hidden * self.shared_intermediate
        layers = self.layers_at(site)
        return (
            layers * layer
            + (layers - 1) * dense
            + shared
            + self.experts * self.hidden
            + self.other_site_params
        )

    def block_bytes(self, site: int) -> int:
        """The bytes that are streamed for a site where its dense block is not resident."""
        return ceil(self.block_params(site) * self.dense_bits / 8)

    @property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def dense_params(self) -> int:
        """All parameters but those of experts.

        These are the dense blocks, the final norms, the embedding and the LM head (one matrix where
        they are tied).
        """
        blocks = sum(self.block_params(site) for site in range(self.sites))
        norms = self.hidden * (2 if self.encoder_sites else 1)
        return (
            blocks
            + (1 if self.tied_embeddings else 2) * self.head_params
            + norms
            + self.other_params
        )

    @property
    def dense_bytes(self) -> int:
        return ceil(self.dense_params * self.dense_bits / 8)

    @property
    def total_params(self) -> int:
        return self.dense_params + self.sites * self.stored_experts * self.expert_params

    @property
    def active_params(self) -> int:
        """The parameters that one token uses, with the whole embedding counted."""
        return self.dense_params + self.sites * self.top_k * self.expert_params

    @property
    def layer_kv_bytes(self) -> int:
        """The bytes that one layer caches of one token: keys and values, or their compression."""
        width = 2 * self.kv_heads * self.head_dim
        if self.latent is not None:
            width = self.latent.kv_rank + self.latent.rope_dim
        return ceil(width * self.kv_bits / 8)

    @property
    def kv_bytes_per_token(self) -> int:
        """The cached bytes of one token over all layers that cache, while it is in all windows.

        An encoder's layers cache nothing. A prompt's tokens are cached by the decoder's
        cross-attention.
        """
        return sum(map(self.site_kv_bytes, range(self.sites)))

    def kv_bytes_by_window(self, sites: Iterable[int] | None = None) -> dict[int, int]:
        """The cached bytes of one token over the layers with each window, those of ``sites`` or all.

        A layer keeps as many of a sequence's last tokens as its window has; 0 stands for all.
        """
        found: dict[int, int] = {}
        for site in range(self.sites) if sites is None else sites:
            for window in () if self.is_encoder(site) else self.windows_at(site):
                found[window] = found.get(window, 0) + self.layer_kv_bytes
        return found

    def kv_bytes(self, tokens: int) -> int:
        """The cached bytes of a sequence of so many tokens."""
        by_window = self.kv_bytes_by_window().items()
        return sum(size * min(tokens, window or tokens) for window, size in by_window)

    def site_kv_bytes(self, site: int) -> int:
        """The cached bytes of one token over a site's layers."""
        return 0 if self.is_encoder(site) else self.layers_at(site) * self.layer_kv_bytes
