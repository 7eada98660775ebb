"""A stand-in for a device's driver that writes down what the device hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from real.driver.device import Device, Service


class Listening:
    """Writes down (time, what, number) of every hand-over, then does what ``then`` plans for it."""

    def __init__(self, device: Device, engines: tuple[int, ...] = (1,)) -> None:
        self.device, self.seen = device, list[tuple[int, str, int]]()
        self.then: dict[tuple[str, int], Callable[[], object]] = {}
        self.ended: list[Service] = []
        self.row = 0
        device.open(self, engines)

    def serve(
        self,
        number: int,
        takes_ns: int,
        moved_bytes: int = 1,
        link: int = 0,
        engine: int = 0,
        **rest: Any,
    ) -> Service:
        """Begin a service of ``takes_ns`` that moves its bytes evenly."""
        service = Service(
            self.row,
            link,
            engine,
            number,
            number,
            moved_bytes,
            self.device.now_ns(),
            lambda some: takes_ns * some // moved_bytes,
            **rest,
        )
        self.row += 1
        self.device.serve(service)
        return service

    def _see(self, what: str, number: int) -> None:
        self.seen.append((self.device.now_ns(), what, number))
        if (what, number) in self.then:
            self.then[what, number]()

    def on_service_end(self, service: Service) -> None:
        self.ended.append(service)
        self._see("end", service.number)

    def on_head(self, service: Service) -> None:
        self._see("head", service.number)

    def on_chunk(self, service: Service, moved_bytes: int) -> None:
        self._see(f"chunk to {moved_bytes}", service.number)

    def on_cpu_result(self, key: int) -> None:
        self._see("cpu", key)

    def on_prediction(self, tick: int) -> None:
        self._see("prediction", tick)

    @property
    def what(self) -> list[tuple[str, int]]:
        return [(what, number) for _, what, number in self.seen]
