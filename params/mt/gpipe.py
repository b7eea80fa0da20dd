"""GPipe's Transformers for 102 languages and English, in stages (Huang et al. 2019, sec. 5).

T(L, H, A) has L layers on either side, feed-forward networks of H features and A heads of 64
features; its width is 1024, its vocabulary 64,000. The published sizes leave out norms:

    L (4 d 64 A + 2 d H) + L (8 d 64 A + 2 d H) + 2 V d

Here, as in Lingvo's Transformers, layers have a layer norm before each part and no biases of
products, and there is no norm at the end: 10 L d more weights, up to 0.018 %. Each device has a
stage of the encoder and a stage of the decoder; in GPipe it has one part of the model. As in the
paper, deep models are trainable because the initial weights of feed-forward networks shrink with
the number of layers, and logits are limited. The paper gives no details: here standard deviations
are divided by the layers of a side, and a tanh keeps logits within 30. The paper does not give the
optimizer either; here it is the optimizer in `params/mt/wmt14.py`.

The data are your own, in a folder, in place of 25 billion pairs:

    *.tsv           tables with the columns language, text and English, for `Translations`
    pieces.model    a SentencePiece model of 64,000 pieces
"""

from __future__ import annotations

from collections.abc import Mapping

from lingo.config.registry import experiment
from lingo.contract import Experiment
from lingo.data import PairInput, SentencePiece
from lingo.layers import FanIn, FeedForward, Pipeline, Repeat, SoftmaxHead
from lingo.optim import Adam, Transformer
from lingo.runtimes.mesh.mesh import Mesh
from params.mt.wmt14 import transformer
from tasks.mt.translations import Translations
from tasks.seq2seq.task import SequenceToSequence

VOCAB_SIZE = 64_000
DIM = 1024
LOGIT_CAP = 30.0

PUBLISHED: Mapping[tuple[int, int, int], tuple[int, str]] = {
    (6, 8192, 16): (2, "400M"),
    (12, 16384, 32): (4, "1.3B"),
    (24, 8192, 16): (4, "1.3B"),
    (32, 16384, 32): (8, "3B"),
    (64, 16384, 32): (16, "6B"),
}
"""T(L, H, A) -> partitions and size in the paper."""


@experiment
def multilingual(
    num_layers: int = 6,
    hidden_dim: int = 8192,
    num_heads: int = 16,
    num_stages: int | None = None,
    data: int = 8,
    folder: str = "~/multilingual",
):
    """T(L, H, A) of GPipe, from any language to English; T(6, 8192, 16) has 407,957,504 weights.

    Without norms it has 407,896,064 weights, published as 400M, in 2 partitions. T(24, 8192, 16)
    and T(12, 16384, 32) have 1,238,368,256 (1.3B) in 4 partitions, T(32, 16384, 32) has
    3,083,862,016 (3B) in 8, and T(64, 16384, 32) has 6,036,652,032 (6B) in 16. Partitions are
    stages here; `data` pipelines share a batch.
    Published: T(24, 8192, 16) is better than T(12, 16384, 32) for languages with few pairs;
    T(64, 16384, 32) is better than bilingual models in every language. Built and counted, never
    trained.

    lingo show --exp=mt.gpipe.multilingual --weights
    lingo show --exp=mt.gpipe.multilingual --pipeline
    """
    stages, _ = PUBLISHED.get((num_layers, hidden_dim, num_heads), (1, ""))
    stages = num_stages if num_stages is not None else stages
    model = transformer(
        dim=DIM,
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        layer_dropout_rate=0.1,
        heads={"num_heads": num_heads, "head_dim": 64},
        norm=None,
        head=SoftmaxHead.params(logit_cap=LOGIT_CAP),
        dropout_rate=0.1,
    )
    model.all(FeedForward).set(use_bias=False, init=FanIn.params(scale=num_layers**-2))
    model.all(Repeat).swap(Pipeline, num_stages=stages, num_micro_batches=4 * stages, remat=True)
    # the matrices outside the pipelines have no stage: each device has a part of them
    along = {"vocab": ["model", "stage"]}
    return Experiment.params(
        task=SequenceToSequence.params(
            model=model,
            vocab_size=VOCAB_SIZE,
            label_smoothing=0.1,
            chunk_size=64,  # otherwise logits take most of the memory
            dtype="bfloat16",
        ),
        train_input=PairInput.params(
            source=Translations.params(pattern=f"{folder}/*.tsv"),
            tokenizer=SentencePiece.params(model=f"{folder}/pieces.model", vocab_size=VOCAB_SIZE),
            batch_size=256,  # 262,144 tokens, the paper's smallest batch
            source_length=1024,
            target_length=1024,
        ),
        optimizer=Adam.params(
            learning_rate=3.0,
            schedule=Transformer.params(model_dim=DIM, warmup_steps=40_000),
            beta2=0.98,
            epsilon=1e-9,
        ),
        runtime=Mesh.params(data=data, stage=stages, weight_rules=along, activation_rules=along),
        max_steps=500_000,
    )
