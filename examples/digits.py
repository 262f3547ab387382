"""Train a small convolutional network on real handwritten digits.

    python examples/digits.py [--epochs 30] [--out FOLDER]

Writes `digits.safetensors` (the weights) and `digits.png` (the loss curve and some test digits
with what the network reads, errors marked). Ctrl-C stops training and keeps what was learned.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import tiny
from tiny import Tensor, TinyJit
from tiny.bench.models import digits_net
from tiny.nn.datasets import digits
from tiny.nn.optim import AdamW
from tiny.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

BATCH = 128


def accuracy(net, x: Tensor, y: Tensor) -> float:
    """The share of images read right, in percent."""
    return 100 * (net(x).argmax(axis=1) == y).mean().item()


def train(net, x: Tensor, y: Tensor, epochs: int, console: Console) -> list[float]:
    """Minimise the cross-entropy; the loss of every step. Ctrl-C ends it early."""
    optimizer = AdamW(get_parameters(net), lr=3e-3, weight_decay=1e-2)
    rng, losses = np.random.default_rng(0), []
    images, labels = x.numpy(), y.numpy()
    steps = len(images) // BATCH

    @TinyJit
    def learn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with Tensor.train():
            optimizer.zero_grad()
            out = net(x)
            loss = out.sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss, (out.argmax(axis=1) == y).mean()

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=epochs * steps)
        try:
            for epoch in range(epochs):
                order, right = rng.permutation(len(images)), 0.0
                for step in range(steps):
                    batch = order[step * BATCH : (step + 1) * BATCH]
                    loss, hits = learn(Tensor(images[batch]), Tensor(labels[batch]))
                    losses.append(loss.item())
                    right += hits.item()
                    text = f"epoch {epoch + 1:2}  loss {losses[-1]:.3f}"
                    text += f"  accuracy {100 * right / (step + 1):5.1f} %"
                    progress.update(task, advance=1, description=text)
        except KeyboardInterrupt:
            console.print(f"stopped after {len(losses)} steps; keeping what was learned")
    return losses


def picture(path: Path, losses: list[float], x: Tensor, y: Tensor, read: np.ndarray) -> None:
    """The loss curve, and 40 test digits with the errors first."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    images, labels = x.numpy()[:, 0], y.numpy()
    shown = np.argsort(read == labels, kind="stable")[:40]
    figure = plt.figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    axes = left.subplots()
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="cross-entropy", yscale="log", title="training loss")
    right.suptitle("test digits and what was read (errors in red, first)")
    for cell, i in zip(right.subplots(5, 8).flat, shown, strict=True):
        cell.imshow(images[i], cmap="gray_r")
        wrong = read[i] != labels[i]
        text = f"{read[i]} (is {labels[i]})" if wrong else f"{read[i]}"
        cell.set_title(text, color="red" if wrong else "black", fontsize=9)
        cell.set_axis_off()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the results")
    args = parser.parse_args()
    console = Console()

    Tensor.manual_seed(1)
    x_train, y_train, x_test, y_test = digits()
    net = digits_net(tiny)
    started = time.perf_counter()
    losses = train(net, x_train, y_train, args.epochs, console)
    console.print(
        f"{len(losses)} steps in {time.perf_counter() - started:.1f} s, "
        f"last loss {losses[-1] if losses else float('nan'):.4f}"
    )

    args.out.mkdir(parents=True, exist_ok=True)
    weights = args.out / "digits.safetensors"
    before = accuracy(net, x_test, y_test)
    safe_save(get_state_dict(net), weights)
    fresh = digits_net(tiny)
    load_state_dict(fresh, safe_load(weights))
    after = accuracy(fresh, x_test, y_test)
    if after != before:
        raise RuntimeError(f"saving lost something: accuracy {before} before and {after} after")
    picture(args.out / "digits.png", losses, x_test, y_test, fresh(x_test).argmax(axis=1).numpy())
    console.print(f"weights in {weights}, picture in {args.out / 'digits.png'}")
    console.print(f"test accuracy {after:.1f} %", highlight=False)


if __name__ == "__main__":
    main()
