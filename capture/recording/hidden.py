"""The files with the gate inputs and channel masks that a trace keeps of some sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

from capture.models.discover import CaptureError
from capture.recording.rows import Array
from capture.recording.settings import Settings
from capture.recording.shards import Shards
from capture.recording.sites import Tokens, site_name


def hidden_file(sequence: int) -> str:
    """Path in the trace of the file with a sequence's gate inputs and channel masks."""
    return f"hidden/sequence_{sequence:03d}.safetensors"


class HiddenFiles:
    """Writes the files of kept rows from the shards, one sequence at a time.

    A file has these tensors over a sequence's T kept rows:

    - ``gate_in`` [T, S, H]: float16, or int8 to be multiplied by ``scale``.
    - ``scale`` float32 [T, S], with int8 only; NaN at a site that decoded rows do not visit.
    - ``position`` int32 [T].
    - ``mask_planes`` [T, S, K, B, ceil(I / 8)], where masks are kept: see
      `capture.recording.extras.pack_masks`.
    """

    def __init__(
        self, shards: Shards, tokens: Tokens, settings: Settings, sites: int, masks: bool
    ) -> None:
        self._shards, self._tokens, self._settings = shards, tokens, settings
        self._sites, self._masks = sites, masks
        self._sequences = np.unique(tokens.sequence[tokens.kept]).tolist()

    def files(self) -> dict[str, Callable[[Path], None]]:
        """The function that writes each file, by the file's path in the trace."""
        return {hidden_file(number): self._writer(number) for number in self._sequences}

    def error(self) -> dict[str, float]:
        """The relative RMS error of all stored gate inputs, under the provenance's key."""
        wrong = whole = 0.0
        for number in self._sequences:
            inputs = np.nan_to_num(self._inputs(number)[0].astype(np.float64))
            stored = self._stored(number)
            values = stored["gate_in"].astype(np.float64)
            if "scale" in stored:
                values *= stored["scale"][..., None]
            wrong += float(((inputs - np.nan_to_num(values)) ** 2).sum())
            whole += float((inputs**2).sum())
        return {"hidden_relative_rms_error": float(np.sqrt(wrong / whole)) if whole else 0.0}

    def _writer(self, number: int) -> Callable[[Path], None]:
        def write(place: Path) -> None:
            tensors = self._stored(number)
            tensors["position"] = self._inputs(number)[1]
            if self._masks:
                tensors["mask_planes"] = self._planes(number)
            safetensors.numpy.save_file(
                {name: np.ascontiguousarray(values) for name, values in tensors.items()}, place
            )

        return write

    def _inputs(self, number: int) -> tuple[Array, Array]:
        """Gate inputs float32 [T, S, H] and positions [T] of a sequence's kept rows."""
        tokens = self._tokens
        unit = (
            int(
                np.searchsorted(
                    tokens.begins, int(np.argmax(tokens.sequence == number)), side="right"
                )
            )
            - 1
        )
        begin, end = tokens.begins[unit : unit + 2]
        mine = tokens.kept[begin:end] & (tokens.sequence[begin:end] == number)
        name = tokens.units[unit]
        rows = self._shards.tensor(name, "input_rows").numpy()
        chosen = np.flatnonzero(mine[rows])
        inputs = self._shards.tensor(name, "gate_in")[chosen].float().numpy()
        return inputs, self._shards.tensor(name, "position").numpy()[mine]

    def _stored(self, number: int) -> dict[str, Array]:
        inputs = self._inputs(number)[0]
        if self._settings.hidden_dtype == "float16":
            if np.nan_to_num(np.abs(inputs)).max(initial=0.0) > np.finfo(np.float16).max:
                raise CaptureError(
                    f"gate inputs of sequence {number} exceed float16; record with"
                    " hidden_dtype=int8"
                )
            return {"gate_in": inputs.astype(np.float16)}
        scale = np.maximum(np.abs(inputs).max(-1), 1e-12).astype(np.float32) / 127
        multiples = np.nan_to_num(np.rint(inputs / scale[..., None]))
        return {"gate_in": multiples.astype(np.int8), "scale": scale}

    def _planes(self, number: int) -> Array:
        own = np.flatnonzero(self._tokens.sequence[self._tokens.kept] == number)
        begin, end = int(own[0]), int(own[-1]) + 1
        sites = [
            self._shards.rows(site_name(site), "mask_planes", begin, end).numpy()
            for site in range(self._sites)
        ]
        return np.stack(sites, axis=1)[own - begin]
