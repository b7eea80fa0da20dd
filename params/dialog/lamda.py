"""LaMDA, language models of dialogs (Thoppilan et al. 2022), and one that trains in minutes.

The sizes are from table 27. The models are decoder-only, with T5's relative positions (one table
for all layers) and gated GELU of 8 times the width. A head has 128 features; all heads together
have twice the width. The number of weights is exact, with V = 32,000, width d, N heads and L
layers:

    V d + 32 N + L (4 d 128 N + 3 d 8 d + 2 d) + d

The paper counts weights without the embedding: 2B, 8B, 137B. It does not publish the optimizer, the
row length, or whether logits share the embedding; here these follow Lingvo's dense models of the
same shapes (`params/lm/lingvo_dense.py`).
"""

from __future__ import annotations

from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.registry import experiment
from lingo.contract import Checkpointing, Evaluation, Experiment
from lingo.data import JsonLines, Mixture, SentencePiece, TextInput
from lingo.datasets import Docstrings
from lingo.layers import Attention, Remat, Repeat, Stack
from lingo.optim import Adafactor, AdamW, Cosine, InverseSqrt, Warmup
from lingo.runtimes.mesh.mesh import Mesh
from params.lm.switch import t5_layer
from tasks.dialog.formats import SENTINELS, DialogTokenizer
from tasks.dialog.input import DialogInput
from tasks.dialog.mask import RatingMask
from tasks.dialog.pieces import DialogPieces
from tasks.dialog.ranking import Ranking
from tasks.dialog.research import Research
from tasks.dialog.responder import DialogResponder
from tasks.dialog.templates import ResearchDialogs, TemplateDialogs
from tasks.dialog.tools.toolset import Toolset
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

VOCAB_SIZE = 32_000
MIXTURE = {  # parts of the texts to pre-train on (appendix E)
    "forums": 50.0,
    "c4": 12.5,
    "code": 12.5,
    "wikipedia": 12.5,
    "english_web": 6.25,
    "other_web": 6.25,
}


def _model(*, dim: int, num_layers: int, num_heads: int, head_dim: int = 128):
    layer = t5_layer(hidden_dim=8 * dim, num_heads=num_heads, head_dim=head_dim, gated=True)
    return LanguageModel.params(dim=dim, stack=Stack.params(layer=layer, num_layers=num_layers))


def _pretraining(model, *, folder: str, data: int, model_axis: int, max_steps: int):
    """Returns an experiment on the published mixture and a mesh, with 256K tokens a step.

    Layers are rematerialized.
    """
    pieces = SentencePiece.params(
        model=f"{folder}/pieces.model", vocab_size=VOCAB_SIZE - len(SENTINELS)
    )
    inputs = {
        name: TextInput.params(
            source=JsonLines.params(pattern=f"{folder}/{name}/*.jsonl*"),
            tokenizer=DialogTokenizer.params(tokenizer=pieces),
            length=1024,
        )
        for name in MIXTURE
    }
    layer, num_layers = model.stack.layer, model.stack.num_layers
    model.stack = Repeat.params(layer=Remat.params(layer=layer), num_layers=num_layers)
    return Experiment.params(
        task=LanguageModeling.params(model=model, vocab_size=VOCAB_SIZE, dtype="bfloat16"),
        train_input=Mixture.params(inputs=inputs, weights=MIXTURE, batch_size=256),
        optimizer=Adafactor.params(
            learning_rate=0.01, schedule=InverseSqrt.params(hold_steps=10_000), relative_step=False
        ),
        runtime=Mesh.params(data=data, model=model_axis, rules="2d_finalized"),
        max_steps=max_steps,
    )


@experiment
def lamda_2b(folder: str = "~/lamda", data: int = 16, model: int = 8):
    """LaMDA 2B: 10 layers, width 2560, 40 heads; 2,179,127,040 weights.

    `folder` has your own texts in place of the published texts. It has a folder of .jsonl files
    with a field `text` for each name in MIXTURE, and pieces.model, a SentencePiece model of 31,991
    pieces, which leaves room for the sentinels of dialogs. Published: 501,000 steps, 1.5 days on 64
    chips of TPU v3, which are 128 devices; fine-tuned for 3 hours on 16 chips.

    lingo show --exp=dialog.lamda.lamda_2b --weights
    """
    shape = _model(dim=2560, num_layers=10, num_heads=40)
    return _pretraining(shape, folder=folder, data=data, model_axis=model, max_steps=501_000)


@experiment
def lamda_8b(folder: str = "~/lamda", data: int = 16, model: int = 8):
    """LaMDA 8B: 16 layers, width 4096, 64 heads; 8,721,143,808 weights.

    Texts are as for `lamda_2b`. Published: 521,000 steps, 23 days on 64 chips of TPU v3;
    fine-tuned for 6 hours on 16 chips.

    lingo show --exp=dialog.lamda.lamda_8b --weights
    """
    shape = _model(dim=4096, num_layers=16, num_heads=64)
    return _pretraining(shape, folder=folder, data=data, model_axis=model, max_steps=521_000)


@experiment
def lamda_137b(folder: str = "~/lamda", data: int = 32, model: int = 64):
    """LaMDA 137B: 64 layers, width 8192, 128 heads; 137,702,158,336 weights.

    Texts are as for `lamda_2b`. Published: 3,000,000 steps, 57.7 days on 1024 chips of TPU v3, at
    56.5 % of their 123 TFLOPS; fine-tuned for 36 hours on 64 chips.

    lingo show --exp=dialog.lamda.lamda_137b --weights
    """
    shape = _model(dim=8192, num_layers=64, num_heads=128)
    return _pretraining(shape, folder=folder, data=data, model_axis=model, max_steps=3_000_000)


LENGTH = 128  # tokens per row of the small model
INVENTED_SHARE = 0.9  # of the questions that teach tools; with 0, few results are copied rightly


def _tokenizer():
    """Returns a tokenizer with the sentinels of dialogs.

    Its 1,024 pieces are learned from dialogs and docstrings.
    """
    return DialogTokenizer.params(
        tokenizer=DialogPieces.params(
            dialogs=[cls.params(num_dialogs=1500) for cls in (TemplateDialogs, ResearchDialogs)],
            source=_english(),
            vocab_size=1024,
        )
    )


def _english():
    return Docstrings.params(packages=["keras", "numpy"], split="train")


def _dialogs(split: str, objective: str, *, num_dialogs: int, has_tools: bool = False):
    asks_tools = has_tools and objective == "generative"
    dialogs = ResearchDialogs if asks_tools else TemplateDialogs
    source = dialogs.params(split=split, num_dialogs=num_dialogs)
    if asks_tools and split == "train":
        source.invented_share = INVENTED_SHARE
    return DialogInput.params(
        source=source,
        tokenizer=_tokenizer(),
        objective=objective,
        length=LENGTH,
        shares_prefix=objective != "text",  # even without ratings: a mixture needs equal arrays
    )


def _heldout(objective: str, *, has_tools: bool = False):
    """Returns evaluation inputs: dialogs about held-out facts, and with held-out templates."""
    splits = {"facts": "heldout_facts", "templates": "heldout_templates"}
    return {
        f"{objective}_{name}": _dialogs(split, objective, num_dialogs=100, has_tools=has_tools).set(
            batch_size=16, repeat=False
        )
        for name, split in splits.items()
    }


def _tiny(train_input, eval_inputs, *, num_steps: int):
    """Returns an experiment that trains the small model."""
    return Experiment.params(
        task=LanguageModeling.params(model=_model(dim=96, num_layers=4, num_heads=6, head_dim=32)),
        train_input=train_input,
        eval_inputs=eval_inputs,
        optimizer=AdamW.params(
            learning_rate=2e-3,
            schedule=Warmup.params(num_steps=20, start=0.05, then=Cosine.params(end=0.1)),
            epsilon=1e-6,
            weight_decay=0.1,
            max_grad_norm=1.0,
        ),
        max_steps=num_steps,
        evaluate=Evaluation.params(every_steps=num_steps),
        checkpoint=Checkpointing.params(every_steps=max(num_steps // 4, 1)),
    )


@experiment(minutes=15)
def lamda_tiny(num_steps: int = 2500):
    """A small LaMDA: 4 layers, width 96; 1,279,872 weights, pre-trained on English and dialogs.

    A third of its rows are docstrings of installed packages, the rest are templated dialogs about
    real facts. Needs `pip install 'lingo-tf[dialog,text]'`. After its 2,500 steps (2.6 M word
    pieces) with seed 0: 0.90 bits a byte on dialogs about held-out subjects, 2.00 on dialogs in
    held-out sentences.

    lingo train --exp=dialog.lamda.lamda_tiny --logdir=runs/lamda_tiny
    """
    english = TextInput.params(source=_english(), tokenizer=_tokenizer(), length=LENGTH)
    inputs = {"dialogs": _dialogs("train", "text", num_dialogs=40_000), "english": english}
    mixture = Mixture.params(inputs=inputs, weights={"dialogs": 2.0, "english": 1.0}, batch_size=8)
    return _tiny(mixture, _heldout("text"), num_steps=num_steps)


@experiment
def lamda_tiny_finetune(
    pretrained: str | None = None, has_tools: bool = True, num_steps: int | None = None
):
    """As lamda_tiny, fine-tuned to ask tools, to respond, and to rate responses: by one model.

    `pretrained` is the run of `lamda_tiny`; without it, weights are random at first. A third of the
    rows have ratings, which take few tokens, because a response's four ratings share its tokens.
    The other rows have responses based on tools; without `has_tools`, they have the rated
    responses, good and bad. `num_steps` is 8,000 with tools, else 2,000. With seed 0, areas under
    the ROC curve on held-out subjects are 1.00 (unsafe, interesting) and 0.99 (specific, sensible),
    and tools support 79 % of the claims. See docs/dialog_study.md.

    lingo train --exp=dialog.lamda.lamda_tiny --logdir=runs/lamda_tiny
    lingo train --exp=dialog.lamda.lamda_tiny_finetune --logdir=runs/lamda_tiny_finetune \\
        --set=exp.pretrained=runs/lamda_tiny
    """
    weights = {"generative": 2.0, "discriminative": 1.0}
    inputs = {
        name: _dialogs("train", name, num_dialogs=20_000, has_tools=has_tools) for name in weights
    }
    mixture = Mixture.params(inputs=inputs, weights=weights, batch_size=8)
    heldout = {
        name: data
        for objective in weights
        for name, data in _heldout(objective, has_tools=has_tools).items()
    }
    if num_steps is None:
        num_steps = 8000 if has_tools else 2000  # copying what tools find takes longer to learn
    cfg = _tiny(mixture, heldout, num_steps=num_steps)
    cfg.evaluate.prompts = ["How much is 135+7721?", "What is the currency of Japan?"]
    cfg.all(Attention).set(mask=RatingMask)
    toolset = Toolset.params(tools=ResearchDialogs.params().tools)
    cfg.chat = DialogResponder.params(
        research=Research.params(toolset=toolset), ranking=Ranking.params()
    )
    if pretrained is not None:
        cfg.init_from = WarmStart.params(path=pretrained)
    return cfg
