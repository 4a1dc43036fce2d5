"""Machine and GPU between rounds, the latter through an NVML that says what it is told to."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from kernelproof.timing.conditions import Watch


class FakeNvml(types.ModuleType):
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.mask = 0
        self.violated = {0: 0, 1: 0}
        self.opened = ""

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, name):
        self.opened = name
        return name

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 41

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.mask

    def nvmlDeviceGetViolationStatus(self, handle, policy):
        return types.SimpleNamespace(violationTime=self.violated[policy])


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = types.SimpleNamespace(uuid="abc")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    return fake


def test_states_of_the_gpu_are_kept_by_round(nvml: FakeNvml) -> None:
    watch = Watch("cuda", 3)
    for number, (mask, violated) in enumerate([(0x1, 0), (0x20 | 0x4, 0), (0x2, 5), (0x1, 0)]):
        watch.begin()
        nvml.mask = mask
        nvml.violated[0] += violated
        watch.end(number)
    assert nvml.opened == "GPU-abc"
    first, second, third, last = watch.conditions().gpu
    assert (first.sm_clock, first.memory_clock, first.temperature) == (1980, 3201, 41)
    # What this GPU does not tell is not known; idle and set clocks are no throttling.
    assert first.power is None and first.throttled == last.throttled == ()
    assert second.throttled == ("power cap", "heat")
    assert third.throttled == ("power cap",)
    assert watch.throttled() == (1, 2) and watch.reasons() == "power cap, heat"
    assert watch.notes() == []


def test_without_the_library_it_is_said_once(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = Watch("cuda", 1)
    watch.begin()
    watch.end(0)
    (note,) = watch.notes()
    assert "pip install nvidia-ml-py" in note
    assert watch.conditions().gpu == () and watch.throttled() == ()


def test_on_a_cpu_threads_processors_and_load_are_kept() -> None:
    watch = Watch("cpu", 5)
    watch.begin()
    watch.end(0)
    kept = watch.conditions()
    assert kept.threads == 5 and len(kept.processors) >= 1 and kept.gpu == ()
    assert kept.load_before is not None and kept.load_during is not None
    assert watch.notes() == []
