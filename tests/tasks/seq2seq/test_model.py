"""The encoder-decoder: against T5 in NumPy, packed and alone, in steps, and exact counts.

Axes: B batch, S source positions, T target positions, D model width, N heads, V vocabulary.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Attention, CallInputs, Embedding, Layer, MoE, Norm, Remat, Repeat, Stack
from lingo.layers.context import apply
from lingo.layers.feed_forward import FeedForward
from lingo.layers.moe.router import HashRouter
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.sequence.mask import LocalWindow
from lingo.layers.sequence.positions import (
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidPositions,
)
from lingo.layers.sequence.softmax import SoftmaxHead
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.ops import random
from tasks.seq2seq.model import EncoderDecoder

B, S, T, D, V = 2, 7, 5, 8, 11
DRAW = np.random.default_rng(0)
SOURCE = DRAW.integers(0, V, [B, S]).astype(np.int32)
TOKENS = DRAW.integers(0, V, [B, T]).astype(np.int32)
BIAS = RelativeBias.params(num_buckets=8, max_distance=6, shared=True)


def model(positions: Any = BIAS, stack: type[Stack] = Stack) -> Params:
    """Returns two layers on each side, of two heads, over eleven tokens."""
    params = EncoderDecoder.params(dim=D, vocab_size=V)
    params.all(DotProductAttention).set(num_heads=2)
    params.all(Attention).set(positions=positions)
    params.all(Stack).swap(stack, num_layers=2)
    return params


def rematerialized() -> Params:
    params = model(stack=Repeat)
    params.all(TransformerLayer).wrap(Remat, "layer")
    return params


def windowed() -> Params:
    params = model()
    params.encoder.layer.attention.mask = LocalWindow.params(window=2, ahead=1)
    params.decoder.layer.attention.mask = LocalWindow.params(window=2)
    return params


def sparse() -> Params:
    """Returns a model of which every second layer has experts, by the numbers of the tokens."""
    params = model()
    for stack in (params.encoder, params.decoder):
        layers = [stack.layer, stack.layer.copy()]
        layers[1].all(FeedForward).wrap(MoE, "expert", num_experts=2, capacity_factor=2.0)
        stack.set(layer=layers)
    params.all(MoE).set(router=HashRouter)
    return params


KINDS = {
    "t5": model,
    "scanned": lambda: model(stack=Repeat),
    "rematerialized": rematerialized,
    "windows": windowed,
    "sparse": sparse,
    "rotary": lambda: model(Rotary),
    "a bias each": lambda: model(BIAS.copy().set(shared=False)),
    "learned": lambda: model(None).set(
        positions=LearnedPositions.params(max_length=S),
        source_embedding=Embedding,
        head=SoftmaxHead,
    ),
    "no norm at the end": lambda: model(None).set(
        positions=SinusoidPositions.params(amplitude=D**-0.5), norm=None
    ),
}
over_kinds = pytest.mark.parametrize("kind", KINDS)
over_plain_kinds = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("scanned", "rematerialized")]
)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def built(kind: str, draw: Callable) -> tuple[Layer, dict[str, Any]]:
    layer = KINDS[kind]().build()
    weights = draw(layer)
    # small, so that rounding stays below what is looked for
    return layer, {where: 0.3 * value for where, value in weights.items()}


def logits(layer: Layer, weights: Any, tokens: Any = TOKENS, source: Any = SOURCE, **inputs: Any):
    return apply(layer, weights, tokens, source_tokens=source, **inputs)[0].numpy()


def t5_bucket(distance: int, *, bidirectional: bool) -> int:
    """Returns the bucket of query position minus key position, of eight up to distance 6."""
    num, first = 8, 0
    if bidirectional:
        num = 4
        first = num if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    half = num // 2
    if distance < half:
        return first + distance
    far = half + int(math.log(distance / half) / math.log(6 / half) * (num - half))
    return first + min(far, num - 1)


class NumpyT5:
    """T5 of one row: RMS norms before, ReLU, one bias table a stack, no scale in the scores."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.w = {where: np.asarray(value, np.float64) for where, value in weights.items()}

    def logits(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        vectors = self.w["embedding/table"] * math.sqrt(D)  # T5's, of variance 1
        memory = self.stack("encoder", vectors[source])
        x = self.stack("decoder", vectors[target], memory)
        return x @ vectors.T / math.sqrt(D)

    def stack(self, side: str, x: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
        for i in range(2):
            at = f"{side}/layers/{i}"
            normed = self.norm(f"{at}/attention_norm", x)
            bias = self.bias(side, len(x))
            x = x + self.attention(f"{at}/attention", normed, normed, bias)
            if memory is not None:
                normed = self.norm(f"{at}/cross_attention_norm", x)
                x = x + self.attention(f"{at}/cross_attention", normed, memory, 0.0)
            normed = self.norm(f"{at}/ffn_norm", x)
            x = x + np.maximum(normed @ self.w[f"{at}/ffn/w_in"], 0) @ self.w[f"{at}/ffn/w_out"]
        return self.norm(f"{side}_norm", x)

    def attention(self, at: str, x: np.ndarray, memory: np.ndarray, bias: Any) -> np.ndarray:
        query, key, value = (
            np.einsum("td,dnh->nth", y, self.w[f"{at}/w_{name}"])
            for name, y in (("query", x), ("key", memory), ("value", memory))
        )
        scores = np.exp(np.einsum("nth,nsh->nts", query, key) / math.sqrt(D // 2) + bias)
        weights = scores / scores.sum(-1, keepdims=True)
        return np.einsum("nts,nsh,nhd->td", weights, value, self.w[f"{at}/w_output"])

    def bias(self, side: str, length: int) -> np.ndarray:
        encoder, bias = side == "encoder", np.zeros([2, length, length])
        for t, s in np.ndindex(length, length):
            bias[:, t, s] = self.w[f"{side}_table"][t5_bucket(t - s, bidirectional=encoder)]
            if s > t and not encoder:
                bias[:, t, s] = -np.inf
        return bias

    def norm(self, at: str, x: np.ndarray) -> np.ndarray:
        square = np.mean(x**2, axis=-1, keepdims=True)
        return self.w[f"{at}/scale"] * x / np.sqrt(square + 1e-6)


def test_equals_t5_in_numpy(draw: Callable) -> None:
    layer, weights = built("t5", draw)
    expected = [NumpyT5(weights).logits(*row) for row in zip(SOURCE, TOKENS, strict=True)]
    close(logits(layer, weights), expected)


@over_plain_kinds
def test_logits_ignore_later_tokens_of_the_target(kind: str, draw: Callable) -> None:
    layer, weights = built(kind, draw)
    whole = logits(layer, weights)
    assert whole.shape == (B, T, V)
    close(whole[:, :3], logits(layer, weights, TOKENS[:, :3]))


@over_kinds
def test_pairs_in_a_row_score_as_they_do_alone(kind: str, draw: Callable) -> None:
    layer, weights = built(kind, draw)
    packed = logits(
        layer,
        weights,
        source_inputs=CallInputs(
            segments=np.array([[1, 1, 1, 2, 2, 2, 0]] * B, np.int32),
            position_ids=np.array([[0, 1, 2, 0, 1, 2, 0]] * B, np.int32),
        ),
        segments=np.array([[1, 1, 2, 2, 0]] * B, np.int32),
        position_ids=np.array([[0, 1, 0, 1, 0]] * B, np.int32),
    )
    close(packed[:, :2], logits(layer, weights, TOKENS[:, :2], SOURCE[:, :3]))
    close(packed[:, 2:4], logits(layer, weights, TOKENS[:, 2:4], SOURCE[:, 3:6]))
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("chunks", [[1] * T, [3, 2]])
@over_kinds
def test_chunk_by_chunk_equals_the_whole(kind: str, chunks: list[int], draw: Callable) -> None:
    layer, weights = built(kind, draw)
    segments = np.array([[1] * S, [1] * 4 + [0] * 3], np.int32)
    source = CallInputs(segments=segments)
    memory, _ = apply(layer, weights, SOURCE, inputs=source, method="encode")
    caches = layer.empty_caches(batch_size=B, length=T + 1)

    @tf.function(autograph=False)
    def step(tokens: Any, index: Any, caches: Any, first: Any) -> Any:
        call = {"caches": caches}
        y, sides = apply(layer, weights, tokens, index, method="step", call=call, **first)
        return y, {**caches, **sides.caches}

    outputs, start = [], 0
    first = {"memory": memory, "memory_segments": tf.constant(segments)}
    for size in chunks:
        tokens = tf.constant(TOKENS[:, start : start + size])
        y, caches = step(tokens, tf.constant(start), caches, first)
        start, first = start + size, {}
        outputs.append(y)
    close(np.concatenate(outputs, 1), logits(layer, weights, source_inputs=source))


def test_the_next_logits_are_the_last_of_a_step(draw: Callable) -> None:
    layer, weights = built("t5", draw)
    memory, _ = apply(layer, weights, SOURCE, method="encode")
    inputs = CallInputs(memory=memory)
    call = {"caches": layer.empty_caches(batch_size=B, length=T)}
    following, whole = (
        apply(layer, weights, TOKENS, 0, inputs=inputs, method=method, call=call)[0]
        for method in ("next_logits", "step")
    )
    close(following, whole[:, -1])
    close(whole, logits(layer, weights))


def test_source_and_target_have_positions_and_vectors_of_their_own(draw: Callable) -> None:
    layer, weights = built("learned", draw)
    shapes = {where: s.shape for where, s in layer.weights().items() if "layers" not in where}
    assert shapes == {
        "embedding/table": (V, D),
        "source_embedding/table": (V, D),
        "source_positions/table": (S, D),
        "positions/table": (S, D),
        "encoder_norm/scale": (D,),
        "decoder_norm/scale": (D,),
        "head/w": (D, V),
    }
    whole = logits(layer, weights)
    for where in shapes:
        assert not np.allclose(logits(layer, weights | {where: 2 * weights[where]}), whole)


def test_a_source_may_have_more_tokens_than_the_target(draw: Callable) -> None:
    layer = model().set(source_embedding=Embedding.params(vocab_size=20)).build()
    assert logits(layer, draw(layer), source=SOURCE + 9).shape == (B, T, V)


def test_the_gradient_of_a_shared_table_is_the_sum_over_layers(draw: Callable) -> None:
    shared, weights = built("t5", draw)
    separate, scanned = model(BIAS.copy().set(shared=False)).build(), rematerialized().build()
    own = {where for where in separate.weights() if where.endswith("positions/table")}
    assert set(separate.weights()) - own == set(weights) - {"encoder_table", "decoder_table"}
    tables = {where: weights[f"{where.split('/')[0]}_table"] for where in own}
    apart = weights | {where: tf.identity(table) for where, table in tables.items()}
    stacked = {
        where: tf.stack([weights[where.replace("[0:2]", str(i))] for i in range(2)])
        if "[0:2]" in where
        else weights[where]
        for where in scanned.weights()
    }

    def gradients(layer: Layer, weights: Any) -> dict[str, np.ndarray]:
        weights = {where: weights[where] for where in layer.weights()}
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y, _ = apply(layer, weights, TOKENS, source_tokens=tf.constant(SOURCE))
            loss = tf.reduce_sum(tf.sin(y))
        found = tape.gradient(loss, weights)
        return {k: tf.convert_to_tensor(v).numpy() for k, v in found.items() if "table" in k}

    summed = gradients(separate, apart)
    for found in (gradients(shared, weights), gradients(scanned, stacked)):
        for side in ("encoder", "decoder"):
            parts = [summed[where] for where in own if where.startswith(side)]
            np.testing.assert_allclose(found[f"{side}_table"], sum(parts), rtol=1e-4, atol=1e-5)


class Nothing(Layer):
    """A stack of no layers."""

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        return x


class NoNorm(Norm):
    """Leaves its input alone."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x


def test_both_ends_of_both_stacks_are_dropped_out_in_training(draw: Callable) -> None:
    layer = model().set(dropout_rate=0.5, dropout_form="feature").build()
    weights = draw(layer)
    call = {"training": True, "key": random.root_key(0), "rows": tf.range(B)}
    memory, _ = apply(layer, weights, SOURCE, method="encode", call=call)
    x, _ = apply(
        layer, weights, TOKENS, inputs=CallInputs(memory=memory), method="activations", call=call
    )
    for y in (memory.numpy(), x.numpy()):
        dropped = (y == 0).all(axis=1)  # [B, D]: a feature at all positions
        assert 0 < dropped.mean() < 1
        np.testing.assert_array_equal(y == 0, np.broadcast_to(dropped[:, None], y.shape))
    embedded = model().set(dropout_rate=0.5, dropout_form="feature")
    with pytest.warns(UserWarning, match=r"^dropped: encoder\.layer = TransformerLayer"):
        embedded.all(Stack).swap(Nothing)
    layer = embedded.set(norm=NoNorm).build()
    for tokens, method in ((SOURCE, "encode"), (TOKENS, "activations")):
        inputs = CallInputs(memory=memory if method == "activations" else None)
        y, _ = apply(layer, draw(layer), tokens, method=method, call=call, inputs=inputs)
        assert (y.numpy() == 0).all(axis=1).mean() > 0.6  # of two halves


def test_outputs_of_stacks_may_be_dropped_at_a_rate_of_their_own(draw: Callable) -> None:
    params = model().set(dropout_rate=0.5, output_dropout_rate=0.0)
    layer, call = params.build(), {"training": True, "key": random.root_key(0), "rows": tf.range(B)}
    whole = apply(layer, draw(layer), SOURCE, method="encode", call=call)[0].numpy()
    assert (whole != 0).all()
    params.output_dropout_rate = 0.9
    layer = params.build()
    most = apply(layer, draw(layer), SOURCE, method="encode", call=call)[0].numpy()
    assert (most == 0).mean() > 0.6


def test_without_a_norm_the_memory_is_the_output_of_the_stack(draw: Callable) -> None:
    layer, weights = built("no norm at the end", draw)
    assert not any("coder_norm" in where for where in weights)
    memory = apply(layer, weights, SOURCE, method="encode")[0].numpy()
    weights = {k: 0 * v if "/w_o" in k else v for k, v in weights.items()}  # parts add nothing
    empty = apply(layer, weights, SOURCE, method="encode")[0].numpy()
    angles = np.arange(S)[:, None] / 10_000 ** (np.arange(D // 2) / (D // 2))
    waves = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    vectors = math.sqrt(D) * weights["embedding/table"].numpy()[SOURCE]
    close(empty, vectors + waves)  # tokens alone are times sqrt(D) (Vaswani et al. 2017)
    assert np.abs(memory - empty).max() > 0.01


@pytest.mark.parametrize("name", ["dropout_rate", "output_dropout_rate"])
def test_a_wrong_rate_is_refused(name: str) -> None:
    with pytest.raises(ParamError, match=rf"{name}=1\.0 is not in \[0, 1\)"):
        model().set(**{name: 1.0}).build()


@pytest.mark.parametrize("kind", ["t5", "scanned"])
def test_logits_are_float32_in_a_bfloat16_model(kind: str, draw: Callable) -> None:
    layer, exact = KINDS[kind]().set(dtype="bfloat16").build(), KINDS[kind]().build()
    weights = {where: 0.3 * value for where, value in draw(exact).items()}
    y = logits(layer, weights)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, logits(exact, weights), atol=0.1)


@pytest.mark.parametrize("kind", ["t5", "learned"])
def test_flops_are_those_of_the_traced_graph(kind: str, traced_flops: Callable) -> None:
    class Called(Layer):
        """The model, called on its target alone."""

        model: EncoderDecoder  # what is called

        def setup(self) -> None:
            self.model = self.p.model.build()

        def __call__(self, tokens: tf.Tensor) -> tf.Tensor:
            return self.model(tokens, source_tokens=tf.constant(SOURCE))

    layer = KINDS[kind]().build()
    found = traced_flops(Called.params(model=KINDS[kind]()).build(), TOKENS)
    assert layer.flops(TOKENS.shape, source_length=S) == found
    scanned = KINDS[kind]()
    scanned.all(Stack).swap(Repeat)
    assert scanned.build().flops(TOKENS.shape, source_length=S) == found


def test_counting_needs_no_tensorflow() -> None:
    program = """
import sys
from lingo.layers.sequence.dot_product import DotProductAttention
from tasks.seq2seq.task import SequenceToSequence
params = SequenceToSequence.params(vocab_size=11)
params.model.dim = 8
params.all(DotProductAttention).set(num_heads=2)
task = params.build()
print(sum(spec.size for spec in task.weights().values()), task.flops([1, 8], source_length=4))
sys.exit("tensorflow" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
