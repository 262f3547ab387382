"""A deep-learning framework whose compiler is fast twice.

The door of the package: it binds the devices to `Tensor` and hands out what users start from.
"""

from tiny.device import Device
from tiny.dtype import dtypes
from tiny.engine import DeviceRuntime
from tiny.engine.jit import TinyJit
from tiny.function import function
from tiny.helpers import VERSION, Context, GlobalCounters, fetch, getenv
from tiny.tensor import Tensor
from tiny.uop.ops import UOp
from tiny.uop.runtime import bind_runtime

bind_runtime(DeviceRuntime())

Variable = UOp.variable
__version__ = VERSION

# layers are made of tensors, so they come once these can run
from tiny import nn  # noqa: E402

__all__ = [
    "Context",
    "Device",
    "GlobalCounters",
    "Tensor",
    "TinyJit",
    "Variable",
    "__version__",
    "dtypes",
    "fetch",
    "function",
    "getenv",
    "nn",
]
