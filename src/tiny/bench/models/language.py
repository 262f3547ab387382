"""Networks on words: whole BERT and GPT-2, and an LSTM."""

from __future__ import annotations

import math
from typing import Any

from .networks import EncoderBlock, Norm, Table


class Attention:
    """Attention of a sequence to itself: (N, length, width) -> the same.

    With `causal` a place attends to those up to itself only.
    """

    def __init__(self, lib: Any, width: int, heads: int, causal: bool = False) -> None:
        self.inputs, self.outputs = lib.nn.Linear(width, 3 * width), lib.nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def __call__(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.inputs(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (split[:, :, k].transpose(1, 2) for k in range(3))
        attended = query.scaled_dot_product_attention(key, value, is_causal=self.causal)
        return self.outputs(attended.transpose(1, 2).reshape(batch, length, width))


class BertModel:
    """BERT with its kinds of sentences and its pooler (Devlin et al., 2018).

    (N, length) words and kinds -> (N, length, width), and (N, width) of the first word.
    """

    def __init__(
        self,
        lib: Any,
        blocks: int = 12,
        width: int = 768,
        heads: int = 12,
        words: int = 30522,
        length: int = 512,
    ) -> None:
        self.words, self.places = Table(lib, words, width), Table(lib, length, width)
        self.kinds, self.norm = Table(lib, 2, width), Norm(lib, width)
        self.layers = [EncoderBlock(lib, width, heads) for _ in range(blocks)]
        self.pooler = lib.nn.Linear(width, width)

    def __call__(self, words: Any, kinds: Any) -> tuple[Any, Any]:
        x = self.words(words) + self.places.weight[: words.shape[1]] + self.kinds(kinds)
        x = self.norm(x)
        for block in self.layers:
            x = block(x)
        return x, self.pooler(x[:, 0]).tanh()


class GPT2Block:
    """Causal attention, then two layers, a norm before each (Radford et al., 2019)."""

    def __init__(self, lib: Any, width: int, heads: int) -> None:
        self.norm, self.inner_norm = Norm(lib, width), Norm(lib, width)
        self.attention = Attention(lib, width, heads, causal=True)
        self.up, self.down = lib.nn.Linear(width, 4 * width), lib.nn.Linear(4 * width, width)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.down(self.up(self.inner_norm(x)).gelu())


class GPT2:
    """GPT-2: (N, length) words -> (N, length, words), 124 million weights."""

    def __init__(
        self,
        lib: Any,
        blocks: int = 12,
        width: int = 768,
        heads: int = 12,
        words: int = 50257,
        length: int = 1024,
    ) -> None:
        self.words, self.places = Table(lib, words, width), Table(lib, length, width)
        self.layers = [GPT2Block(lib, width, heads) for _ in range(blocks)]
        self.norm = Norm(lib, width)

    def __call__(self, words: Any) -> Any:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.layers:
            x = block(x)
        return self.norm(x).linear(self.words.weight.T)


class LSTM:
    """A layer of Hochreiter and Schmidhuber, 1997, unrolled: (steps, N, inputs) -> (N, width).

    Weights are laid out as PyTorch's: input, forget, cell and output gate.
    """

    def __init__(self, lib: Any, inputs: int, width: int) -> None:
        bound = 1 / math.sqrt(width)

        def drawn(*shape: int) -> Any:
            return lib.Tensor.uniform(*shape, low=-bound, high=bound)

        self.weight_ih, self.weight_hh = drawn(4 * width, inputs), drawn(4 * width, width)
        self.bias_ih, self.bias_hh = drawn(4 * width), drawn(4 * width)

    def __call__(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        for k in range(x.shape[0]):
            gates = x[k].linear(self.weight_ih.T, self.bias_ih)
            gates = gates + hidden.linear(self.weight_hh.T, self.bias_hh)
            into, kept, new, out = gates.chunk(4, dim=1)
            cell = kept.sigmoid() * cell + into.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
        return hidden, cell
