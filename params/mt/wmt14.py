"""Lingvo's Transformers for English to German of WMT14 (Vaswani et al. 2017).

They have the tensors of Lingvo's `WmtEnDeTransformerBase`: one embedding for sources and one for
targets, a separate matrix and bias for logits; biases everywhere; one scale per feature of a head's
queries; layer norms before each part, and none after the last layer. The number of weights with V
tokens, width d, hidden width F, N heads, L layers on either side:

    3 V d + V + L (3 (4 d^2 + 4 d + d / N) + 2 (2 d F + F + d) + 5 2 d)

Optimizer, schedule, dropout and label smoothing are Lingvo's; initial values are not (Lingvo's
matrices have Xavier's). The data are your own, in a folder:

    train*.tsv      a pair in each line: English, a tab, German (Lingvo has 4,492,447 pairs)
    dev.tsv         pairs to evaluate; newstest2013 in WMT14
    pieces.model    a SentencePiece model of 32,000 pieces, shared by both languages

For pairs in JSONL: `--set='train_input.source=JsonlPairs(pattern=~/wmt14/train.jsonl)'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config.registry import experiment
from lingo.contract import Answers, Checkpointing, Evaluation, Experiment
from lingo.data import PairInput, SentencePiece, TsvPairs
from lingo.decode.beam import Beam
from lingo.layers import Attention, Embedding, LayerNorm, Repeat, SoftmaxHead, TransformerLayer
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.mask import Bidirectional
from lingo.layers.sequence.positions import SinusoidPositions
from lingo.optim import Adam, Transformer
from lingo.runtimes.mesh.mesh import Mesh
from tasks.seq2seq.model import EncoderDecoder
from tasks.seq2seq.task import SequenceToSequence

VOCAB_SIZE = 32_000


def transformer(
    *,
    dim: int,
    hidden_dim: int,
    num_layers: int,
    layer_dropout_rate: float,
    heads: Mapping[str, Any],
    **model: Any,
):
    """Returns an encoder-decoder with layer norms and sinusoids; all attentions get `heads`.

    Each side has `num_layers` layers. As in the paper, only token vectors are multiplied by
    sqrt(d), and the output of a stack has no dropout.
    """
    layer = TransformerLayer.params(
        attention=Attention.params(**heads), norm=LayerNorm, dropout_rate=layer_dropout_rate
    )
    layer.ffn.set(hidden_dim=hidden_dim, use_bias=True)
    encoder = Repeat.params(layer=layer, num_layers=num_layers)
    decoder = encoder.copy()
    encoder.all(Attention).set(mask=Bidirectional)
    decoder.all(TransformerLayer).set(cross_attention=CrossAttention.params(**heads))
    return EncoderDecoder.params(
        dim=dim,
        positions=SinusoidPositions.params(amplitude=dim**-0.5),
        encoder=encoder,
        decoder=decoder,
        output_dropout_rate=0.0,
        **model,
    )


def pairs(folder: str, name: str, *, vocab_size: int, batch_size: int, length: int):
    """Returns an input that packs a folder's pairs into rows, tokenized by its pieces.model."""
    return PairInput.params(
        source=TsvPairs.params(pattern=f"{folder}/{name}"),
        tokenizer=SentencePiece.params(model=f"{folder}/pieces.model", vocab_size=vocab_size),
        batch_size=batch_size,
        source_length=length,
        target_length=length,
    )


def _experiment(*, folder: str, data: int, dim: int, num_heads: int, dropout_rate: float):
    model = transformer(
        dim=dim,
        hidden_dim=4 * dim,
        num_layers=6,
        layer_dropout_rate=dropout_rate,
        heads={"num_heads": num_heads, "use_bias": True, "scale_features": True},
        source_embedding=Embedding,
        norm=None,
        head=SoftmaxHead.params(use_bias=True),
        dropout_rate=0.1,
    )
    train = pairs(folder, "train*.tsv", vocab_size=VOCAB_SIZE, batch_size=256, length=96)
    heldout = pairs(folder, "dev.tsv", vocab_size=VOCAB_SIZE, batch_size=64, length=200)
    beam = Beam.params(num_beams=4, length_penalty=0.6, max_tokens=200)
    answers = Answers.params(decoding=beam, max_examples=None, measures=["bleu"])
    return Experiment.params(
        task=SequenceToSequence.params(
            model=model, vocab_size=VOCAB_SIZE, label_smoothing=0.1, dtype="bfloat16"
        ),
        train_input=train.set(too_long="leave_out"),
        eval_inputs={"heldout": heldout.set(repeat=False)},
        optimizer=Adam.params(
            learning_rate=3.0,
            schedule=Transformer.params(model_dim=dim, warmup_steps=40_000),
            beta2=0.98,
            epsilon=1e-9,
        ),
        runtime=Mesh.params(data=data),
        evaluate=Evaluation.params(every_steps=5000, answers=answers),
        checkpoint=Checkpointing.params(every_steps=5000),
    )


@experiment
def base(folder: str = "~/wmt14", data: int = 8):
    """Transformer-base of Lingvo: 6 + 6 layers, width 512, 8 heads; 93,323,648 weights.

    A step has 256 rows of 96 tokens a side, about the 25,000 tokens of Vaswani et al. 2017, who
    trained for 100,000 steps on 8 GPUs in 12 hours. Published there: 27.3 BLEU on newstest2014, for
    a model with one shared embedding. Built and counted, never trained.

    lingo show --exp=mt.wmt14.base --weights
    lingo train --exp='mt.wmt14.base(folder="~/wmt14")' --logdir=runs/wmt14
    """
    cfg = _experiment(folder=folder, data=data, dim=512, num_heads=8, dropout_rate=0.1)
    return cfg.set(max_steps=100_000)


@experiment
def big(folder: str = "~/wmt14", data: int = 8):
    """Transformer-big with Lingvo's tensors: width 1024, 16 heads; 274,694,528 weights.

    Lingvo registers no big model for WMT14, but its documentation gives one the rate and warm-up of
    the base model. The dropout rate, 0.3, and the 300,000 steps are from Vaswani et al. 2017, table
    3. Published there: 28.4 BLEU on newstest2014, in 3.5 days on 8 GPUs. Built and counted, never
    trained.

    lingo show --exp=mt.wmt14.big --weights
    lingo plan --exp=mt.wmt14.big --hardware=tpu_v3
    """
    cfg = _experiment(folder=folder, data=data, dim=1024, num_heads=16, dropout_rate=0.3)
    return cfg.set(max_steps=300_000)
