"""The models that are measured, each defined once over a library passed in.

`lib` is a module that has `Tensor` and `nn`: `tiny`, or a peer with the same names. The package
imports nothing else of `tiny`, and its own files by relative names, so that it can be loaded from
its folder into a process that has the peer alone.
"""

from .compiled import GRAPHS, MODELS, emptied
from .language import GPT2, LSTM, BertModel
from .networks import (
    BATCH,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    Llama,
    LlamaBlock,
    Network,
    Norm,
    Residual,
    RootNorm,
    Table,
    basic_block,
    bert,
    bottleneck,
    conv_net,
    decoder,
    decoding_step,
    digits_net,
    images,
    resnet,
    resnet18,
    resnet50,
    rotations,
    set_weights,
    trained,
    training_function,
    training_step,
    turned,
    weights,
)
from .scaling import SCALING, SIZES
from .unet import UNet
from .vision import efficientnet_b0, vit

__all__ = [
    "BATCH",
    "GPT2",
    "GRAPHS",
    "LSTM",
    "MODELS",
    "SCALING",
    "SIZES",
    "BertModel",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "Llama",
    "LlamaBlock",
    "Network",
    "Norm",
    "Residual",
    "RootNorm",
    "Table",
    "UNet",
    "basic_block",
    "bert",
    "bottleneck",
    "conv_net",
    "decoder",
    "decoding_step",
    "digits_net",
    "efficientnet_b0",
    "emptied",
    "images",
    "resnet",
    "resnet18",
    "resnet50",
    "rotations",
    "set_weights",
    "trained",
    "training_function",
    "training_step",
    "turned",
    "vit",
    "weights",
]
