"""Under what times are taken: load of the machine; clocks, heat and power of the GPU.

Sampled in the judging process between rounds, so that no candidate has a hand in it. The GPU is
asked through NVML (package ``nvidia-ml-py``), where that is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kernelproof.types import Conditions, GpuState

# Reasons for lower clocks that count as throttling, bits of nvmlClocksThrottleReasons (nvml.h).
# That it is idle, or clocks that somebody has set, are none.
_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "hardware: heat",
    0x80: "hardware: power brake",
}
# nvmlPerfPolicyType_t: counters of the nanoseconds for which a policy held the clocks back.
_POLICIES = {0: "power cap", 1: "heat"}


class Watch:
    """Looks at machine and GPU between the rounds of one timing.

    Args:
        device: "cpu", "cuda" or "cuda:<index>".
        threads: of the contestants.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._threads = threads
        self._before = _load()
        self._during = 0.0
        self._states: list[GpuState] = []
        self._held: dict[str, int] = {}
        self._problem = ""
        self._gpu: Gpu | None = None
        if device != "cpu":
            try:
                self._gpu = Gpu(device)
            except Exception as error:
                # ImportError, or one of NVML's own: times are good without it, and it is said.
                self._problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"

    def begin(self) -> None:
        """Before a round."""
        if self._gpu is not None:
            self._held = self._gpu.held()

    def end(self, number: int) -> None:
        """After round ``number``."""
        self._during = max(self._during, _load() or 0.0)
        if self._gpu is not None:
            self._states.append(self._gpu.state(number, self._held))

    def throttled(self) -> tuple[int, ...]:
        """Rounds in which the GPU held its clocks back."""
        return tuple(state.number for state in self._states if state.throttled)

    def reasons(self) -> str:
        """Of all rounds, each once."""
        return ", ".join(dict.fromkeys(r for state in self._states for r in state.throttled))

    def conditions(self) -> Conditions:
        return Conditions(
            threads=self._threads,
            processors=tuple(sorted(os.sched_getaffinity(0))),
            load_before=self._before,
            load_during=None if self._before is None else self._during,
            gpu=tuple(self._states),
        )

    def notes(self) -> list[str]:
        """What could not be looked at."""
        if not self._problem:
            return []
        return [
            f"clocks and heat of the GPU are not known ({self._problem}): pip install nvidia-ml-py"
        ]


class Gpu:
    """One GPU as NVML sees it. Raises ImportError without the package, NVMLError without driver."""

    def __init__(self, device: str) -> None:
        import pynvml
        import torch

        self.nvml = pynvml
        pynvml.nvmlInit()
        number = torch.device(device).index
        # By its identity: NVML numbers all GPUs of the machine, torch only those it may see.
        properties = torch.cuda.get_device_properties(0 if number is None else number)
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")

    def held(self) -> dict[str, int]:
        """Nanoseconds for which clocks were held back so far, by reason, as far as it counts."""
        found = {}
        for policy, name in _POLICIES.items():
            status = self._told(self.nvml.nvmlDeviceGetViolationStatus, policy)
            if status is not None:
                found[name] = int(status.violationTime)
        return found

    def state(self, number: int, before: dict[str, int]) -> GpuState:
        nvml = self.nvml
        mask = self._told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        why = [name for bit, name in _REASONS.items() if int(mask) & bit]
        why += [name for name, value in self.held().items() if value > before.get(name, value)]
        power = self._told(nvml.nvmlDeviceGetPowerUsage)
        return GpuState(
            number=number,
            sm_clock=self._told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock=self._told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            temperature=self._told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            power=None if power is None else power / 1000,
            throttled=tuple(dict.fromkeys(why)),
        )

    def _told(self, ask: Callable[..., Any], *more: Any) -> Any:
        """The answer, or None where this GPU or driver has none."""
        try:
            return ask(self.handle, *more)
        except self.nvml.NVMLError:
            return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
