"""Claims about the override grammar."""

from __future__ import annotations

import random
from typing import Any

import pytest

import lingo
from lingo.config import text
from lingo.config.node.tree import same
from lingo.config.overrides import NoMatch, OverrideResult
from lingo.config.overrides import apply as apply_overrides
from lingo.config.params import ParamError


def apply(params: Any, *texts: str) -> list[OverrideResult]:
    return apply_overrides(params, texts)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("max_steps=1_000", "max_steps", 1000),
        ("optimizer.learning_rate=1e-3", "optimizer.learning_rate", 1e-3),
        ("shuffle=FALSE", "shuffle", False),
        ("name=none", "name", None),
        ("name='none'", "name", "none"),
        ("name=don't", "name", "don't"),
        ("name=", "name", ""),
        ("name=_", "name", "_"),
        ("name=f(x=_)", "name", "f(x=_)"),
        ("name=f(x, y", "name", "f(x, y"),
        ("eval_inputs[heldout].extra=f(x, y", "eval_inputs.heldout.extra", "f(x, y"),
        ("eval_inputs[heldout].extra=NoClass(a=1)", "eval_inputs.heldout.extra", "NoClass(a=1)"),
        ("optimizer.betas=.5,1e-3", "optimizer.betas", (0.5, 1e-3)),
        ("model.layer.feed_forward.hidden_dim=3", "model.layer.feed_forward.hidden_dim", 3),
        ("model.layer.feed_forward.norm.dtype='x'", "model.layer.feed_forward.norm.dtype", "x"),
        ("eval_inputs['heldout'].sizes=[1,2]", "eval_inputs.heldout.sizes", [1, 2]),
        ('eval_inputs["heldout"].sizes=3', "eval_inputs.heldout.sizes", [3]),
        ("eval_inputs[heldout].sizes=[]", "eval_inputs.heldout.sizes", []),
        ("eval_inputs[heldout].weights={'b c': 2}", "eval_inputs.heldout.weights", {"b c": 2.0}),
        ("eval_inputs[heldout].extra='3'", "eval_inputs.heldout.extra", "3"),
    ],
)
def test_the_type_of_a_field_decides_how_text_is_read(toys, override, path, value):
    toy = toys.Toy.params()
    assert apply(toy, override)[0].num_matches == 1
    at: Any = toy
    for part in path.split("."):
        at = at[part] if isinstance(at, dict) else getattr(at, part)
    assert same(at, value)


def test_the_value_of_a_template_is_a_class_at_any_depth(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(
        toy,
        "model=Stack(dim=4,"
        " layer=[Block(feed_forward=FeedForward(norm=LayerNorm(epsilon=1e-3))), Norm])",
    )
    first, second = toy.model.layer
    assert (first.feed_forward.norm.cls, first.feed_forward.norm.epsilon) == (toys.LayerNorm, 1e-3)
    assert second.cls is toys.Norm


def test_an_argument_of_a_class_may_be_a_path(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(
        toy,
        "Block=Stack(layer=Norm, num_layers=3)",
        "model.layer=Block(feed_forward.norm.epsilon=0.5)",
    )
    assert toy.model.layer.feed_forward.norm.epsilon == 0.5


def test_an_item_can_be_set_and_a_key_added(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Stack.params(layer=[toys.Block, toys.Block]))
    apply(
        toy,
        "model.layer[1]=Norm(epsilon=0.5)",
        "model.layer[-2].dim=3",
        "eval_inputs['new']=Input(pattern='a b')",
    )
    assert (toy.model.layer[0].dim, toy.model.layer[1].epsilon) == (3, 0.5)
    assert (toy.eval_inputs["new"].pattern, list(toy.eval_inputs)) == ("a b", ["heldout", "new"])
    apply(toy, "eval_inputs[new].sizes=1,2,3", "eval_inputs[new].sizes[1]=9")
    assert toy.eval_inputs["new"].sizes == [1, 9, 3]


def test_a_class_pattern_reaches_subclasses_and_counts(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Stack.params(layer=[toys.FeedForward, toys.Gated]))
    results = apply(toy, "FeedForward.dropout_rate=0.5", "Norm.epsilon=0.25", "Toy.max_steps=3")
    assert results[1].num_matches == 2
    assert [n.dropout_rate for n in toy.all(toys.FeedForward)] == [0.5, 0.5]
    assert toy.model.layer[1].norm.epsilon == 0.25


def test_a_class_pattern_may_go_deeper(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(toy, "Block.feed_forward.norm=LayerNorm", "Block.feed_forward.norm.center=false")
    assert toy.model.layer.feed_forward.norm.center is False


@pytest.mark.parametrize(
    "override",
    [
        "Block=Remat(layer=_)",
        "Layer=Remat(layer=_, policy=none)",
        "FeedForward=MoE(expert=_, num_experts=2)",
        "model=Remat(layer=_)",
        "Block.feed_forward=Remat(layer=_,policy='x')",
        "model.layer=Stack(layer=_, num_layers=1)",
        "FeedForward=Gated",
    ],
)
def test_an_override_applied_twice_is_applied_once(toys: Any, override: str) -> None:
    toy = toys.Toy.params()
    apply(toy, override)
    once = toy.copy()
    apply(toy, override)
    assert same(toy, once)


def test_a_value_that_an_old_wrapper_loses_is_told(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(toy, "FeedForward=MoE(expert=_, num_experts=64)")
    (again,) = apply(toy, "FeedForward=MoE(expert=_, num_experts=64)")
    assert again.dropped_values == []
    (fewer,) = apply(toy, "FeedForward=MoE(expert=_, num_experts=8, dropout_rate=0.1)")
    assert fewer.dropped_values == [
        "model.layer.feed_forward.num_experts = 64: this MoE was there before, it has 8 now"
    ]


def test_overrides_apply_in_order(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(
        toy,
        "FeedForward=MoE(expert=_)",
        "MoE.expert.dropout_rate=0.5",
        "FeedForward=Gated",
        "MoE=Remat(layer=_)",
    )
    ffn = toy.model.layer.feed_forward
    assert (ffn.cls, ffn.layer.cls, ffn.layer.expert.cls) == (toys.Remat, toys.MoE, toys.Gated)
    assert ffn.layer.expert.dropout_rate == 0.5


def test_a_module_tells_classes_of_one_name_apart(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(
        toy,
        f"{toys.__name__}:Norm.epsilon=0.5",
        "conftest.py:Block=Norm",
        f"model.layer={toys.__name__}:Block",
    )
    assert toy.model.layer.cls is toys.Block


MISTAKES = [
    ("max_steps", "sets nothing: write path=value"),
    ("max_stpes=3", r"no field 'max_stpes'. Did you mean 'max_steps'\? Fields: model"),
    ("model.layer.atention.dim=3", r"^model.layer: Block has no .*Did you mean 'attention'"),
    ("dropout_rate=0.5", "To set it wherever it is: FeedForward.dropout_rate"),
    ("max_steps=1e3", "max_steps: Toy.max_steps takes int, got '1e3'. Write 1000."),
    ("max_steps=٣", "takes int"),
    ("max_steps=" + "9" * 5000, "takes int"),
    ("optimizer.learning_rate=fast", "^optimizer.learning_rate: Adam.* takes float, got 'fast'"),
    ("optimizer.learning_rate=nan", "must be finite"),
    ("shuffle=1", "takes bool, got '1'. Write true or false."),
    ("FeedForward.activation=gleu", "takes one of 'relu', 'gelu', got .* Did you mean 'gelu'"),
    ("optimizer.betas=1,x", "takes tuple of float, float, got '1,x'"),
    ("optimizer.betas=", r"Write \[\] for none"),
    ("eval_inputs[heldout].sizes=[1,2", "takes list of int"),
    ("eval_inputs[heldout].weights=1", "Write {key: value, ...}"),
    ("eval_inputs[heldot].sizes=1", r"no item 'heldot'. Did you mean 'heldout'\? Items: 'heldout'"),
    ("eval_inputs.heldout.sizes=1", r"is a dict: write eval_inputs\['heldout'\]"),
    ("eval_inputs[heldout].sizes[0]=1", r"no item '0': it is empty"),
    ("model.layer[0].dim=1", "it has no items"),
    ("[0]=1", "has fields, not items"),
    ("exp.dim=1", "is an argument of the experiment's function, which is not called here"),
    ("model..dim=1", "is not a path"),
    ("model.layer[=1", "lacks a closing"),
    ("model.dim.x=1", "is 8: it has no field 'x'"),
    ("model.layer.attention.positions.theta=1", "is None: it has no field 'theta'. Set it first"),
    ("model.layer.dim.x=1", "is not set"),
    ("optimizer=True", "True is no object: give a class. It takes an Optimizer"),
    ("optimizer=Adm", r"optimizer: There is no class 'Adm' to configure. Did you mean .*'Adam'"),
    ("optimizer=Block", "optimizer: Toy.optimizer takes an Optimizer, got Block"),
    ("optimizer=Adam(betas=1,2)", "takes field=value, got '2'; a list is in brackets"),
    ("optimizer=Adam(learning_rat=1)", "optimizer: Adam has no .*Did you mean 'learning_rate'"),
    ("optimizer=Adam(learning_rate=x)", "optimizer.learning_rate: Adam.* takes float, got 'x'"),
    ("optimizer=Adam(learning_rate=1,learning_rate=2)", "Adam\\(...\\) has 'learning_rate' twice"),
    ("optimizer=Adam(", "Write Class"),
    ("optimizer=os:system", "There is no class 'system' to configure in os"),
    ("Block=" + "Remat(layer=" * 99 + "Norm" + ")" * 99, "more than 64 deep"),
    ("Blok.dim=3", r"no Blok .* Did you mean 'Block'\? Its classes: Adam, Attention"),
    ("Block.dmi=3", "Block has no field 'dmi'. Did you mean 'dim'"),
    ("Layer.dropout_rate=0.1", "Layer has no field 'dropout_rate'.*FeedForward.dropout_rate"),
    ("Block=3", "Block: '3' is not a class"),
    ("Block=Adam", "cannot replace|takes"),
    ("Block=Remat(lyer=_)", "Remat has no field 'lyer'. Did you mean 'layer'"),
    ("Block=Remat(layer=_, policy=_)", "2 times"),
    ("Block=Remat(layer=Remat(layer=_))", "there is nothing that"),
    ("Attention.positions=Remat(layer=_)", "there is nothing that"),
    ("Block=Stack(num_layers=_)", "Stack.num_layers does not take .*Block"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES, ids=[o[:40] for o, _ in MISTAKES])
def test_a_mistake_is_one_clear_error_and_changes_nothing(toys, override, message):
    toy = toys.Toy.params()
    before = toy.copy()
    with pytest.raises(ParamError, match=message) as caught:
        apply(toy, override)
    assert len(str(caught.value).splitlines()) == 1
    assert same(toy, before)


def test_a_class_that_is_not_there_is_told_from_other_mistakes(toys: Any) -> None:
    with pytest.raises(NoMatch):
        apply(toys.Toy.params(), "MoE.num_experts=3")


def test_any_garbage_is_applied_or_refused_with_a_param_error(toys: Any) -> None:
    valid = [o for o, _ in MISTAKES if len(o) < 60] + [
        "Block=Remat(layer=_)",
        "optimizer=Adam(betas=[.1, '.2'])",
    ]
    alphabet = "aZ_=.,:()[]{}'\"\\ 019-e\n\0é"
    rng = random.Random(0)
    for _ in range(1500):
        letters = list(rng.choice(valid))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randint(0, 2)] = rng.choice(alphabet)
        toy = toys.Toy.params()
        said = ""
        try:
            apply(toy, "".join(letters))
        except ParamError as error:
            said = str(error)
        assert len(said.splitlines()) <= 1, letters
        text.flatten(toy)


def test_a_new_object_says_which_values_of_the_old_one_it_lacks() -> None:
    params = lingo.get("lm.source.tiny")
    (result,) = apply(params, "optimizer=Muon(learning_rate=1e-3, weight_decay=0.1)")
    assert result.left_out == (
        "optimizer.schedule = Warmup; optimizer.max_grad_norm = 1.0; optimizer.epsilon = 1e-06."
        " AdamW=Muon(...) keeps them"
    )
    again = lingo.get("lm.source.tiny")
    (kept,) = apply(again, "AdamW=Muon(learning_rate=1e-3)")
    assert (kept.left_out, again.optimizer.max_grad_norm) == ("", 1.0)
    (other,) = apply(again, "runtime=Mesh(data=2)")
    assert other.left_out == ""
