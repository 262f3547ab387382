"""Running schedules: compiled kernels, memory, launches, and the Runtime that tensors use."""

from tiny.engine.memory import DeviceRuntime
from tiny.engine.realize import CompiledKernel, compile_kernel, compile_linear, run_linear

__all__ = ["CompiledKernel", "DeviceRuntime", "compile_kernel", "compile_linear", "run_linear"]
