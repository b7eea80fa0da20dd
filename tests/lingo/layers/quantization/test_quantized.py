import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.inspection.conformance.layer_call import initial_values
from lingo.inspection.experiment_check import ProductCount, count_products
from lingo.layers import Quantized, context
from lingo.layers.inputs import BatchRequirements
from lingo.ops import random
from lingo.ops.quantization import (
    fake_quantize,
    fake_quantize_channels,
    quantize_channels,
    value_range,
)
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

B, T, D = 2, 3, 4
HEADS = nn.Attention.params(num_heads=2)
TRANSFORMER = nn.TransformerLayer.params(attention=HEADS)
LOCAL = HEADS.copy().set(dim=D, mask=nn.LocalWindow.params(window=1))
PLACES = nn.ImageAttention.params(dim=D, output_dim=D, num_heads=2, image=(4, 4))
SEQUENCE, IMAGE = [B, T, D], [B, 4, 4, D]
LAYERS = {
    "Linear": (nn.Linear.params(dim=D, output_dim=3), SEQUENCE, 1),
    "FeedForward": (nn.FeedForward.params(dim=D), SEQUENCE, 2),
    "FeedForward(gated)": (nn.FeedForward.params(dim=D, gated=True), SEQUENCE, 3),
    "Attention": (HEADS.copy().set(dim=D), SEQUENCE, 6),
    "Attention(blocks)": (LOCAL, SEQUENCE, 6),
    "Attention(blockwise)": (HEADS.copy().set(dim=D, blockwise=True), SEQUENCE, 6),
    "TransformerLayer": (TRANSFORMER.copy().set(dim=D), SEQUENCE, 8),
    "Lstm": (nn.Lstm.params(dim=D), SEQUENCE, 2),
    "Gru": (nn.Gru.params(dim=D), SEQUENCE, 2),
    "Conv1D": (nn.Conv1D.params(dim=D, output_dim=3), SEQUENCE, 1),
    "Conv2D": (nn.Conv2D.params(dim=D, output_dim=3), IMAGE, 1),
    "DepthwiseConv2D": (nn.DepthwiseConv2D.params(dim=D), IMAGE, 1),
    "TransposedConv2D": (nn.TransposedConv2D.params(dim=D, output_dim=3), IMAGE, 1),
    "ImageAttention": (PLACES, IMAGE, 7),
    "ImageHead": (nn.ImageHead.params(dim=D, num_classes=3), IMAGE, 1),
    "BasicBlock": (models.BasicBlock.params(dim=D, output_dim=3), IMAGE, 3),
    "MoE": (nn.MoE.params(dim=D, num_experts=2, min_capacity=1), SEQUENCE, 4),
}
"""A layer, the shape of its input, and the number of its products: routers and sums have none."""


def quantized(layer, **fields):
    return Quantized.params(layer=layer, **fields).build()


def inputs(*shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape).astype("f"))


def call(layer, x, *, training=True, state=None):
    """Returns the result of a call, its side outputs, and the gradient of each weight."""
    values = initial_values(layer)
    fields = {"state": state or values.state, "training": training, "rows": tf.range(x.shape[0])}
    fields["key"] = random.root_key(0)
    with tf.GradientTape() as tape:
        tape.watch(values.weights)
        y, sides = context.apply(layer, values.weights, x, call=fields)
        total = tf.reduce_sum(tf.square(y))
    return y, sides, tape.gradient(total, values.weights)


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_trains_with_all_its_products_rounded(name):
    inside, shape, number = LAYERS[name]
    layer, x = quantized(inside), inputs(*shape)
    assert count_products(layer).num_quantized == number
    y, sides, gradients = call(layer, x)
    exact, _, exact_gradients = call(inside.build(), x)
    assert y.shape == exact.shape
    assert 0 < np.abs(y - exact).max() < 0.1 * np.abs(exact).max()
    assert sides.batch_statistics.keys() == layer.states().keys()
    assert gradients.keys() == exact_gradients.keys()
    assert None not in gradients.values()
    assert all(np.isfinite(np.asarray(g)).all() for g in gradients.values())


def test_a_product_is_that_of_rounded_operands():
    layer, x = quantized(nn.Linear.params(dim=D, output_dim=3)), inputs(*SEQUENCE)
    w = fake_quantize_channels(initial_values(layer).weights["w"], [0])
    y, sides, _ = call(layer, x)
    low, high = value_range(x, [1, 2])
    np.testing.assert_allclose(y, tf.tensordot(fake_quantize(x, value_range(x, [1, 2])), w, 1))
    for end, values in (("low", low), ("high", high)):
        statistic = sides.batch_statistics[f"w_input_{end}"]
        assert float(statistic["weight"]) == B
        np.testing.assert_allclose(statistic["sum"], tf.reduce_sum(values), rtol=1e-6)


def test_after_training_the_range_is_the_stored_one():
    layer, x = quantized(nn.Linear.params(dim=D, output_dim=3)), inputs(*SEQUENCE)
    w = fake_quantize_channels(initial_values(layer).weights["w"], [0])
    state = {"w_input_low": tf.constant(-0.5), "w_input_high": tf.constant(0.25)}
    y, sides, _ = call(layer, x, training=False, state=state)
    expected = tf.quantization.fake_quant_with_min_max_vars(x, -0.5, 0.25)
    np.testing.assert_allclose(y, tf.tensordot(expected, w, 1), atol=1e-6)
    assert not sides.batch_statistics


CONVOLUTIONS = {
    "plain": nn.Conv2D,
    "quantized": Quantized.params(layer=nn.Conv2D),
    "quantized, rematerialized": nn.Remat.params(layer=Quantized.params(layer=nn.Conv2D)),
    "rematerialized, quantized": Quantized.params(layer=nn.Remat.params(layer=nn.Conv2D)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_after_training_a_norm_adds_multiples_of_the_scale_of_a_convolution(name: str):
    fields = {"dim": D, "output_dim": 3, "activation": "identity"}
    unit = nn.ConvNorm.params(conv=CONVOLUTIONS[name], **fields)
    layer = quantized(unit) if name == "plain" else unit.build()
    weights, x = initial_values(layer).weights, inputs(*IMAGE)
    weights |= {"norm/gamma": tf.constant([0.0, 0.5, -2.0]), "norm/beta": tf.constant([0.3] * 3)}
    state = {
        "conv/w_input_low": tf.constant(-0.5),
        "conv/w_input_high": tf.constant(0.25),
        "norm/moving_mean": tf.constant([0.1, 0.2, 0.4]),
        "norm/moving_mean_square": tf.constant([1.0, 2.0, 3.0]),
    }
    y, _ = context.apply(layer, weights, x, call={"state": state})
    _, scale = quantize_channels(weights["conv/w"], [0, 1, 2])
    found = y / (scale * 0.75 / 255) / tf.math.rsqrt([0.99 + 1e-5, 1.96 + 1e-5, 2.84 + 1e-5])
    np.testing.assert_allclose(y[..., 0], 0.3, rtol=1e-6)
    whole = found[..., 1:] / [0.5, -2.0]
    np.testing.assert_allclose(whole, tf.round(whole), atol=0.02)
    assert np.abs(whole).max() > 100


@pytest.mark.parametrize("is_inside", [False, True])
def test_the_scale_of_results_is_that_of_a_computed_weight(is_inside: bool, draw):
    conv = nn.Conv2D.params(dim=D, output_dim=3)
    if is_inside:
        layer = quantized(nn.WeightNorm.params(layer=conv))
    else:
        layer = nn.WeightNorm.params(layer=Quantized.params(layer=conv)).build()
    weights = draw(layer)
    fields = {"state": initial_values(layer).state}
    found, _ = context.apply(layer, weights, "w", method="result_scale", call=fields)
    with context.enter_call(context.Call(weights=weights)):
        (w,) = (layer.layer if is_inside else layer).matrix_values().values()
    _, scale = quantize_channels(w, [0, 1, 2])
    np.testing.assert_allclose(found, tf.reshape(scale, [-1]) * 2 / 255, rtol=1e-6)
    assert np.abs(w - weights["w"]).max() > 0.01


@pytest.mark.parametrize(
    ("layer", "product", "domain"),
    [
        (nn.Conv2D.params(dim=D, output_dim=3), "w", nn.PassiveAsymQDomain.params(bits=9)),
        (
            nn.Conv2D.params(dim=D, output_dim=3),
            "w",
            nn.PassiveAsymQDomain.params(per_channel=False),
        ),
        (nn.Conv2D.params(dim=D, output_dim=3), "w", nn.WeightQDomain.params()),
        (nn.ImageHead.params(dim=D, num_classes=3), "mean", nn.PassiveAsymQDomain.params()),
    ],
)
def test_other_products_have_no_scale(layer, product, domain):
    wrapped = quantized(layer, domain=domain)
    values = initial_values(wrapped)
    fields = {"state": values.state}
    scale, _ = context.apply(wrapped, values.weights, product, method="result_scale", call=fields)
    assert scale is None


def test_a_converter_gets_the_range_of_a_sum_as_it_was_measured():
    layer, x = quantized(nn.ImageHead.params(dim=D, num_classes=3)), inputs(*IMAGE)
    values, ends = initial_values(layer), {"low": -0.5, "high": 1.25}
    state = {name: tf.constant(ends[name.rpartition("_")[2]]) for name in layer.states()}
    fields = {"state": state, "constant_ranges": True}
    y, _ = context.apply(layer, values.weights, x, call=fields)
    w = fake_quantize_channels(values.weights["linear/w"], [0])
    mean = tf.reduce_mean(tf.quantization.fake_quant_with_min_max_vars(x, -0.5, 1.25), [1, 2])
    mean = tf.quantization.fake_quant_with_min_max_vars(mean, -0.5, 1.25)
    np.testing.assert_allclose(y, mean @ w + values.weights["linear/b"], atol=1e-6)


def test_an_example_that_is_not_finite_changes_no_range():
    layer, x = quantized(nn.Linear.params(dim=D, output_dim=3)), inputs(*SEQUENCE)
    broken = tf.concat([x, tf.fill([1, T, D], np.nan), tf.fill([1, T, D], np.inf)], axis=0)
    ends = [call(layer, v)[1].batch_statistics["w_input_low"] for v in (x, broken)]
    assert float(ends[0]["weight"]) == float(ends[1]["weight"]) == B
    np.testing.assert_allclose(ends[0]["sum"], ends[1]["sum"], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_example_that_is_not_finite_leaves_its_group_out(value):
    domain = nn.PassiveAsymQDomain.params(statistics_over=2)
    layer = quantized(nn.Linear.params(dim=D, output_dim=3), domain=domain)
    x = inputs(4, T, D)
    broken = tf.tensor_scatter_nd_update(x, [[2, 0, 0]], [value])
    for end in ("low", "high"):
        first = call(layer, x[:2])[1].batch_statistics[f"w_input_{end}"]
        found = call(layer, broken)[1].batch_statistics[f"w_input_{end}"]
        assert float(found["weight"]) == float(first["weight"]) == 2.0
        np.testing.assert_array_equal(found["sum"], first["sum"])


def test_a_range_of_the_whole_call_is_one_statistic():
    domain = nn.PassiveAsymQDomain.params(statistics_over=None)
    layer = quantized(nn.Linear.params(dim=D, output_dim=3), domain=domain)
    x = inputs(*SEQUENCE)
    statistic = call(layer, x)[1].batch_statistics["w_input_high"]
    assert float(statistic["weight"]) == 1.0
    np.testing.assert_allclose(statistic["sum"], tf.reduce_max(x))
    assert layer.batch_requirements() == BatchRequirements(examples_counted=0)


def test_steps_are_counted_where_a_domain_needs_them():
    layer = quantized(
        nn.Linear.params(dim=D, output_dim=3), domain=nn.SymmetricScheduledClipQDomain
    )
    assert layer.states().keys() == {"steps"}
    statistic = call(layer, inputs(*SEQUENCE), state={"steps": tf.constant(6.0)})[1]
    assert float(statistic.batch_statistics["steps"]["sum"]) == 7.0


def test_routers_and_softmax_layers_keep_their_precision():
    stack = nn.Stack.params(num_layers=2, layer=TRANSFORMER)
    model = Quantized.params(layer=LanguageModel.params(dim=D, vocab_size=7, stack=stack)).build()
    assert count_products(model) == ProductCount(16, {"TiedHead": 1})
    assert str(count_products(model)) == "16 of 17 products quantized, not 1 of TiedHead"
    mixture = quantized(LAYERS["MoE"][0])
    assert [*count_products(mixture).others.values()] == [1]


@pytest.mark.parametrize("is_inside", [True, False])
def test_stacked_layers_count_one_by_one_wherever_the_wrapper_is(is_inside):
    layer = TRANSFORMER.copy().set(dim=D)
    if is_inside:
        stack = nn.Repeat.params(num_layers=3, layer=Quantized.params(layer=layer))
    else:
        stack = Quantized.params(layer=nn.Repeat.params(num_layers=3, layer=layer))
    count = count_products(stack.build())
    assert count == ProductCount(24, {})
    assert str(count) == "24 of 24 products quantized"


def test_a_wrapper_leaves_out_what_another_inside_quantizes():
    inner = Quantized.params(layer=nn.FeedForward, domain=nn.WeightQDomain)
    layer = quantized(TRANSFORMER.copy().set(dim=D, ffn=inner))
    assert not any("ffn" in name for name in layer.states())
    assert count_products(layer) == ProductCount(8, {})


def test_a_pattern_selects_products():
    layer = quantized(TRANSFORMER.copy().set(dim=D), pattern="ffn/.*")
    assert count_products(layer) == ProductCount(2, {"Attention": 6})


def test_a_matrix_that_no_product_names_is_reported():
    class Direct(nn.Layer):
        def setup(self):
            self.w = self.weight("w", [D, D], axes=(None, None))

        def __call__(self, x):
            return x @ self.w

        def flops(self, shape):
            return 1

    assert count_products(Direct.params().build()) == ProductCount(0, {"Direct": 1})
    with pytest.raises(ParamError, match=r"matches no product of the Direct inside; it has none"):
        quantized(Direct.params())


def test_refusals():
    with pytest.raises(ParamError, match=r"pattern='x' matches no product of .* it has w_in"):
        quantized(nn.FeedForward.params(dim=D), pattern="x")
    repeated = nn.Repeat.params(num_layers=2, layer=nn.FeedForward.params(dim=D))
    with pytest.raises(ParamError, match=r"matches some of the layers stacked"):
        quantized(repeated, pattern="layers/0/.*")


def test_a_whole_model_trains_as_with_its_stack_quantized():
    stack = nn.Stack.params(layer=TRANSFORMER)
    whole = Quantized.params(layer=LanguageModel.params(dim=D, stack=stack))
    inside = LanguageModel.params(dim=D, stack=Quantized.params(layer=stack))
    batch = {"tokens": tf.constant([[1, 2, 3]]), "targets": tf.constant([[2, 3, 4]])}
    batch |= {"segments": tf.ones([1, 3], tf.int32), "positions": tf.constant([[0, 1, 2]])}
    losses = []
    for model in (whole, inside):
        task = LanguageModeling.params(model=model, vocab_size=6, chunk_size=2).build()
        values = initial_values(task)
        fields = {"state": values.state, "training": True, "rows": tf.range(1)}
        fields["key"] = random.root_key(0)
        found, _ = context.apply(
            task, values.weights, {**batch, "weights": tf.ones([1])}, method="loss", call=fields
        )
        losses.append(float(found["cross_entropy"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    layer = whole.copy().set().build(vocab_size=6)
    assert layer.embedding is layer.layer.embedding
    with pytest.raises(AttributeError, match="no attribute 'decoder'"):
        _ = layer.decoder
