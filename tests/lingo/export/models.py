"""Small experiments of several kinds, to be exported."""

from __future__ import annotations

import lingo
from lingo.config.params import Params
from lingo.data import PrefixText
from lingo.layers import ConvNorm, ImageHead, MaxPool, Quantized
from lingo.layers.sequence.mask import Prefix
from lingo.models.image.resnet import resnet
from lingo.optim import ConstantRate

TINY = ("eval_inputs={}", "evaluate.prompts=[]", "max_steps=1", "evaluate.sampling.max_tokens=6")
EXPERIMENTS = {
    "tiny": "lm.source.tiny(model_dim=16, num_layers=1)",
    "tiny_moe": "lm.source.tiny_moe(num_experts=4)",
    "prefix": "lm.source.tiny(model_dim=16, num_layers=1)",
    "pairs": "seq2seq.source.signatures(model_dim=16, num_layers=1)",
    "convolution": "image.amoebanet.digits(num_filters=8)",
    "convolution_int8": "image.amoebanet.digits(num_filters=8)",
    "resnet": "image.resnet.glyphs",
    "vit": "image.vit.glyphs(augment=False)",
    "bfloat16": "lm.source.tiny(model_dim=16, num_layers=1)",
    "average": "lm.source.tiny(model_dim=16, num_layers=1)",
}


def small(name: str) -> Params:
    """Returns a small experiment, whose evaluation input is a pass over what it trains on."""
    params = lingo.get(EXPERIMENTS[name], *TINY)
    if name == "tiny_moe":
        params.task.model.set(dim=16)
        params.task.model.stack.num_layers = 1
    if name.startswith("convolution"):
        head = ImageHead.params(dim=8, num_classes=10)
        params.task.model.layers = [ConvNorm.params(dim=1, output_dim=8), MaxPool, head]
    if name == "convolution_int8":
        params.task.model = Quantized.params(layer=params.task.model)
    if name == "resnet":
        shape = {"num_layers": 18, "num_classes": 47, "channels": 1, "width": 4}
        params.task.model.layers = resnet(**shape, small_images=True, stem_stride=2)
    if name in ("resnet", "vit"):
        params.train_input.batch_size = 32
    if name == "bfloat16":
        params.task.dtype = "bfloat16"
    if name == "average":  # the first of three evaluations has the largest loss
        params.set(max_steps=3).optimizer.set(ema_decay=0.5, learning_rate=0.01)
        params.optimizer.schedule = ConstantRate.params()
        params.evaluate.set(weights="ema", every_steps=1, metric="same/loss", goal="max")
        params.checkpoint.keep_best = 1
    if name.startswith("tiny") or name in ("bfloat16", "average"):
        params.train_input.length = 32
    if name == "prefix":
        params.task.model.stack.layer.attention.mask = Prefix
        source = params.train_input.source
        params.train_input = PrefixText.params(
            source=source, batch_size=4, length=32, form="decoder"
        )
    if name == "pairs":
        params.train_input.set(source_length=48, target_length=32)
    data = params.train_input.copy().set(repeat=False, batch_size=24, max_batches=3)
    return params.set(eval_inputs={"same": data})
