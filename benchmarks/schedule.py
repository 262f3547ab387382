"""What is stored between kernels, and how many kernels there are, beside tinygrad.

    python benchmarks/schedule.py [--workloads attention,adam] [--libraries tiny,tinygrad]

Each library schedules the same program, written once over its public API, in a process of its own;
nothing runs. Stored: what kernels write that is neither asked for nor assigned. Kept: values in
memory of the thread (STAGE). tiny's time is for a schedule that is not in its cache. Needs
tinygrad==0.14.0, or leave it out of --libraries.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

LIBRARIES = ("tiny", "tinygrad")

# ---------------------------------------------------------------- the workloads


def softmax(t: Any) -> list[Any]:
    return [t.empty(64, 1024).softmax()]


def _layer_norm(t: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    scale = ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return centred * scale * weight + bias


def layer_norm(t: Any) -> list[Any]:
    return [_layer_norm(t, t.empty(512, 768), t.empty(768), t.empty(768))]


def rms_norm(t: Any) -> list[Any]:
    x = t.empty(512, 768)
    return [x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * t.empty(768)]


def layer_norm_backward(t: Any) -> list[Any]:
    x, weight, bias = t.empty(512, 768), t.empty(768), t.empty(768)
    y = _layer_norm(t, x, weight, bias)
    return [y, *_gradients(y, t.empty(512, 768), x, weight, bias)]


def cross_entropy(t: Any) -> list[Any]:
    return [t.empty(128, 1000).sparse_categorical_crossentropy(_rows(t, 128))]


def cross_entropy_backward(t: Any) -> list[Any]:
    x = t.empty(128, 1000)
    loss = x.sparse_categorical_crossentropy(_rows(t, 128))
    return [loss, *_gradients(loss, None, x)]


def _mlp(t: Any) -> tuple[Any, list[Any]]:
    x, w, b = t.empty(512, 768), t.empty(768, 3072), t.empty(3072)
    v, c = t.empty(3072, 768), t.empty(768)
    return (x @ w + b).gelu() @ v + c, [x, w, b, v, c]


def mlp(t: Any) -> list[Any]:
    return [_mlp(t)[0]]


def mlp_backward(t: Any) -> list[Any]:
    y, inputs = _mlp(t)
    return [y, *_gradients(y, t.empty(512, 768), *inputs)]


def _attention(t: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        seen = t.arange(rows).reshape(rows, 1) >= t.arange(columns).reshape(1, columns)
        scores = seen.where(scores, -float("inf"))
    return scores.softmax() @ v


def attention(t: Any) -> list[Any]:
    return [_attention(t, *[t.empty(4, 12, 512, 64) for _ in range(3)], causal=False)]


def attention_causal(t: Any) -> list[Any]:
    return [_attention(t, *[t.empty(4, 12, 512, 64) for _ in range(3)], causal=True)]


def attention_one_query(t: Any) -> list[Any]:
    k, v = t.empty(4, 12, 512, 64), t.empty(4, 12, 512, 64)
    return [_attention(t, t.empty(4, 12, 1, 64), k, v, causal=False)]


def attention_backward(t: Any) -> list[Any]:
    inputs = [t.empty(4, 12, 512, 64) for _ in range(3)]
    y = _attention(t, *inputs, causal=True)
    return [y, *_gradients(y, t.empty(4, 12, 512, 64), *inputs)]


def _conv_block(t: Any) -> tuple[Any, list[Any]]:
    x, w = t.empty(32, 64, 56, 56), t.empty(64, 64, 3, 3)
    weight, bias = t.empty(64), t.empty(64)
    y = _batch_norm(x.conv2d(w, padding=1), weight, bias)
    return y.relu().max_pool2d(2), [x, w, weight, bias]


def _batch_norm(y: Any, weight: Any, bias: Any) -> Any:
    centred = y - y.mean((0, 2, 3), keepdim=True)
    scale = ((centred * centred).mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
    return centred * scale * weight.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


def conv_block(t: Any) -> list[Any]:
    return [_conv_block(t)[0]]


def conv_block_backward(t: Any) -> list[Any]:
    y, inputs = _conv_block(t)
    return [y, *_gradients(y, t.empty(*y.shape), *inputs)]


def embedding(t: Any) -> list[Any]:
    table, rows = t.empty(5000, 64), _rows(t, 128)
    return [table[rows]]


def cumsum(t: Any) -> list[Any]:
    return [t.empty(8, 4096).cumsum(1)]


def argmax(t: Any) -> list[Any]:
    return [t.empty(64, 1000).argmax(1)]


def cat(t: Any) -> list[Any]:
    return [t.cat(*[t.empty(k + 1, 64) for k in range(8)])]


def adam(t: Any) -> list[Any]:
    step, updated = t.empty(1), []
    for k in range(50):
        shape = (k + 3, 7)
        updated += _adam(t, t.empty(*shape), t.empty(*shape), step)
    return updated


def _adam(t: Any, p: Any, gradient: Any, step: Any) -> list[Any]:
    """The values that m, v and a parameter are assigned, in the order of their use."""
    m, v = t.empty(*p.shape), t.empty(*p.shape)
    m.assign(m * 0.9 + gradient * 0.1)
    v.assign(v * 0.999 + gradient * gradient * 0.001)
    up = m / (1 - step) / ((v / (1 - step)).sqrt() + 1e-8)
    p.assign(p - up * 0.001)
    return [m, v, p]


def decode_step(t: Any) -> list[Any]:
    """One token of a transformer of 12 layers, width 768, its caches of 512 rows as inputs."""
    x = t.empty(1, 768)
    for _ in range(12):
        h = _layer_norm(t, x, t.empty(768), t.empty(768))
        q, k, v = (h @ t.empty(768, 2304) + t.empty(2304)).reshape(1, 3, 12, 64).split(1, dim=1)
        keys = t.empty(12, 511, 64).cat(k.reshape(12, 1, 64), dim=1)
        values = t.empty(12, 511, 64).cat(v.reshape(12, 1, 64), dim=1)
        a = _attention(t, q.reshape(12, 1, 64), keys, values, causal=False)
        x = x + a.reshape(1, 768) @ t.empty(768, 768) + t.empty(768)
        h = _layer_norm(t, x, t.empty(768), t.empty(768))
        h = (h @ t.empty(768, 3072) + t.empty(3072)).gelu()
        x = x + h @ t.empty(3072, 768) + t.empty(768)
    return [_layer_norm(t, x, t.empty(768), t.empty(768)) @ t.empty(768, 50257)]


def resnet50(t: Any) -> list[Any]:
    """Forward, batch 64, batch norms as they are in use: a scale and a shift."""

    def conv(x: Any, channels: int, size: int, stride: int = 1) -> Any:
        w = t.empty(channels, x.shape[1], size, size)
        x = x.conv2d(w, stride=stride, padding=size // 2)
        scale, shift, mean, var = (t.empty(channels).reshape(1, -1, 1, 1) for _ in range(4))
        return (x - mean) * (var + 1e-5).rsqrt() * scale + shift

    x = conv(t.empty(64, 3, 224, 224), 64, 7, 2).relu()
    x = x.pad((1, 1, 1, 1)).max_pool2d(3, 2)
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(blocks):
            step = stride if k == 0 else 1
            y = conv(conv(x, width, 1).relu(), width, 3, step).relu()
            y = conv(y, 4 * width, 1)
            x = (y + (conv(x, 4 * width, 1, step) if k == 0 else x)).relu()
    return [x.mean((2, 3)) @ t.empty(2048, 1000) + t.empty(1000)]


def conv_net_step(t: Any) -> list[Any]:
    """A training step of a small convolutional network, batch 128, with Adam."""
    shapes = [(32, 1, 5, 5), (32,), (32, 32, 5, 5), (32,), (32,), (32,)]
    shapes += [(64, 32, 3, 3), (64,), (64, 64, 3, 3), (64,), (64,), (64,), (576, 10), (10,)]
    weights = [t.empty(*s) for s in shapes]
    w1, b1, w2, b2, g1, h1, w3, b3, w4, b4, g2, h2, w5, b5 = weights
    x = t.empty(128, 1, 28, 28)
    x = x.conv2d(w1, b1).relu().conv2d(w2, b2).relu()
    x = _batch_norm(x, g1, h1).max_pool2d(2)
    x = x.conv2d(w3, b3).relu().conv2d(w4, b4).relu()
    x = _batch_norm(x, g2, h2).max_pool2d(2).reshape(128, 576) @ w5 + b5
    loss = x.sparse_categorical_crossentropy(_rows(t, 128))
    updated, step = [loss], t.empty(1)
    for p, gradient in zip(weights, _gradients(loss, None, *weights), strict=True):
        updated += _adam(t, p, gradient, step)
    return updated


def _rows(t: Any, n: int) -> Any:
    return t.empty(n, dtype="int32")


def _gradients(y: Any, upstream: Any, *inputs: Any) -> list[Any]:
    if upstream is None:
        return list(y.gradient(*inputs))
    return list(y.gradient(*inputs, gradient=upstream))


WORKLOADS: dict[str, Callable[[Any], list[Any]]] = {
    f.__name__: f
    for f in (
        softmax,
        layer_norm,
        rms_norm,
        layer_norm_backward,
        cross_entropy,
        cross_entropy_backward,
        mlp,
        mlp_backward,
        attention,
        attention_causal,
        attention_one_query,
        attention_backward,
        conv_block,
        conv_block_backward,
        embedding,
        cumsum,
        argmax,
        cat,
        adam,
        decode_step,
        resnet50,
        conv_net_step,
    )
}

# ---------------------------------------------------------------- what each process counts


def count_tiny(outputs: Sequence[Any]) -> dict[str, Any]:
    """Kernels, bytes stored between them, rows kept, visits and CPU time of scheduling a node."""
    from tiny.device import Device
    from tiny.schedule import create_schedule
    from tiny.schedule.schedule import forget_schedules
    from tiny.uop.ops import Ops, UOp

    sink = UOp.sink(*[x.uop for x in outputs])
    seconds = math.inf
    for _ in range(3):
        forget_schedules()
        start = time.process_time()
        bound = create_schedule(sink, lambda name: Device[name].target, Device.DEFAULT)
        seconds = min(seconds, time.process_time() - start)
    s = bound.schedule
    kept = sum(n.op is Ops.STAGE for i in s.items for n in i.kernel.postorder())
    return {
        "kernels": s.stats.kernels,
        "stored": s.stats.stored_nbytes,
        "kept": kept,
        "us": seconds * 1e6 / s.stats.nodes,
        "visits": s.stats.visits / s.stats.nodes,
    }


def count_tinygrad(outputs: Sequence[Any]) -> dict[str, Any]:
    """Kernels, and the bytes that they write to temporary buffers."""
    first, *others = outputs
    linear = first.schedule_linear(*others)
    asked = {n for x in outputs for n in x.uop.toposort() if n.op.name == "BUFFER"}
    kernels = stored = 0
    for call in linear.src:
        kernel, *buffers = call.src
        kernels += 1
        written = {0}
        if kernel.op.name == "SINK":
            stores = [n for n in kernel.toposort() if n.op.name == "STORE"]
            written = {p.arg.slot for s in stores for p in s.src[0].toposort() if _is_param(p)}
        for k in written:
            if not any(n in asked for n in buffers[k].toposort()):
                stored += buffers[k].numel() * buffers[k].dtype.itemsize
    return {"kernels": kernels, "stored": stored}


def _is_param(node: Any) -> bool:
    return node.op.name == "PARAM" and hasattr(node.arg, "slot") and node.dtype.name != "weakint"


def count(library: str, names: Sequence[str]) -> dict[str, Any]:
    """The counts of one library, by workload."""
    lib = importlib.import_module(library)
    counter = count_tiny if library == "tiny" else count_tinygrad
    found = {}
    for name in names:
        with lib.Context(TRAINING=0):
            found[name] = counter(WORKLOADS[name](lib.Tensor))
    return found


# ---------------------------------------------------------------- the table


def main() -> None:
    """Count in a process for each library, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--count", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.workloads.split(",")
    if options.count:
        print(json.dumps(count(options.count, names)))
        return
    counts = {}
    for library in options.libraries.split(","):
        command = [sys.executable, __file__, "--count", library, "--workloads", ",".join(names)]
        done = subprocess.run(
            command, env={**os.environ, "DEV": "NULL"}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{library} failed:\n{done.stderr[-2000:]}")
        counts[library] = json.loads(done.stdout.splitlines()[-1])
    peers = [x for x in counts if x != "tiny"]
    head = f"{'workload':<24}{'kernels':>8}{'MB':>10}{'kept':>6}{'visits':>8}{'us/node':>9}"
    print(head + "".join(f"{x + ' kernels':>18}{'MB':>10}" for x in peers))
    for name in names:
        line = f"{name:<24}"
        if "tiny" in counts:
            c = counts["tiny"][name]
            line += f"{c['kernels']:>8}{c['stored'] / 1e6:>10.3f}{c['kept']:>6}"
            line += f"{c['visits']:>8.1f}{c['us']:>9.0f}"
        for x in peers:
            c = counts[x][name]
            line += f"{c['kernels']:>18}{c['stored'] / 1e6:>10.3f}"
        print(line)


if __name__ == "__main__":
    main()
