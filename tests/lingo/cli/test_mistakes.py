"""Mistakes on the command line: each is told in at most three lines, and nothing is created."""

from __future__ import annotations

import pathlib
import re
import shlex

import pytest

from lingo.cli.main import main

TINY = "--exp=lm.source.tiny"
TRAIN = f"train {TINY} --logdir=run"
DECODE = "decode --run=here --prompt=a"

# command line, regular expression of what is told; each ends with code 2
MISTAKES = [
    # ---- verbs and words
    ("trian --exp=tiny", "there is no verb 'trian'. Did you mean 'train'"),
    ("fit --exp=tiny", "there is no verb 'fit'.\nVerbs: list, show"),
    ("--exp=tiny train", "the verb comes first: lingo VERB --exp=tiny"),
    ("show tiny", "'tiny' is one word too many.* Did you mean --exp=tiny"),
    ("train tiny --logdir=run", "'tiny' is one word too many.* Did you mean --exp=tiny"),
    ("check mine.py:mine", "one word too many.* Did you mean --exp=mine.py:mine"),
    ("show folder", "'folder' is one word too many.* Did you mean --run=folder"),
    ("eval folder", "'folder' is one word too many.* Did you mean --run=folder"),
    ("decode hello", "'hello' is one word too many.* Did you mean --prompt=hello"),
    ("train exp=tiny --logdir=run", "Did you mean --exp=tiny"),
    (f"{TRAIN} max_steps=3", "Did you mean --set=max_steps=3"),
    (f"{TRAIN} --set=max_steps 3", "'3' is one word too many: train takes flags only.$"),
    ("list tiny small", "'small' is one word too many"),
    ("why optimizer.learning_rate tiny", "'tiny' is one word too many"),
    ("describe", "describe needs a word: lingo describe NAME"),
    ("why --exp=tiny", "why needs a word: lingo why PATH"),
    ("checkpoint", "needs a word: lingo checkpoint list|inspect|verify"),
    ("launch train --exp=tiny", "launch needs a command after --"),
    ("launch --workers=2 -- tran --exp=tiny", "Did you mean 'train'"),
    # ---- addresses, which are no paths here
    (f"train {TINY} --logdir=s3://bucket/run", "'s3://bucket/run' is an address, and lingo reads"),
    (f"train {TINY} --logdir=gs://bucket/run --dry_run", "mount the bucket"),
    ("eval --run=hdfs://host/run", "'hdfs://host/run' is an address"),
    ("sweep --exp=tiny --sweep=seed=0,1 --logdir=s3://b/run", "is an address"),
    ("export --run=r --format=savedmodel --output=gs://b/e", "is an address"),
    ("serve --export=s3://b/e", "is an address"),
    ("benchmark --from_logs=s3://b/logs", "is an address"),
    # ---- flags
    (f"{TRAIN} --steps=100", "no flag --steps. Did you mean --set=max_steps=100"),
    (f"{TRAIN} --num_steps=100", "Did you mean --set=max_steps=100"),
    (f"{TRAIN} --max_steps=100", "Did you mean --set=max_steps=100"),
    (f"{TRAIN} --epochs=3", "Did you mean --set=max_steps=3"),
    (f"{TRAIN} --lr=0.1", "Did you mean --set=optimizer.learning_rate=0.1"),
    (f"{TRAIN} --learning_rate=0.1", "Did you mean --set=optimizer.learning_rate=0.1"),
    (f"{TRAIN} --optimizer.learning_rate=1", "Did you mean --set=optimizer.learning_rate=1"),
    (f"{TRAIN} --batch_size=8", "Did you mean --set=train_input.batch_size=8"),
    (f"{TRAIN} --seed=3", "Did you mean --set=seed=3"),
    (f"{TRAIN} --dtype=bfloat16", "Did you mean --set=task.dtype=bfloat16"),
    (f"{TRAIN} --fp16", "Did you mean --set=task.dtype=float16"),
    (f"{TRAIN} --bf16", "Did you mean --set=task.dtype=bfloat16"),
    (f"train {TINY} --output_dir=run", "Did you mean --logdir"),
    (f"train {TINY} --workdir=run", "Did you mean --logdir"),
    (f"train {TINY} --log-dir=run", "Did you mean --logdir"),
    ("train --experiment=tiny --logdir=run", "Did you mean --exp"),
    ("train --config=tiny --logdir=run", "Did you mean --exp"),
    ("train -e tiny --logdir=run", "there is no flag --e"),
    (f"{TRAIN} --dryrun", "Did you mean --dry_run"),
    (f"{TRAIN} --verbose", "Did you mean --traceback"),
    (f"{TRAIN} --resume", "there is no flag --resume.\nFlags: --allow_change"),
    ("eval --exp=tiny", "there is no flag --exp"),
    (f"{DECODE} --max_new_tokens=3", "Did you mean --max_tokens"),
    (f"{DECODE} --max_length=3", "Did you mean --max_tokens"),
    ("decode --run=here --text=a", "Did you mean --prompt"),
    ("eval --run=here --checkpoint=3", "Did you mean --step"),
    # ---- values of flags
    (f"{TRAIN} --devices=two", "--devices=two: 'two' is not a whole number"),
    (f"{TRAIN} --devices=0", "--devices=0: 0 is not an integer in the range"),
    (f"{TRAIN} --hang_timeout=1h", "--hang_timeout=1h: '1h' is not a whole number"),
    (f"{TRAIN} --overfit=0", "--overfit=0: '0' is not a positive number"),
    (f"{TRAIN} --audit=yes", "--audit=yes: write true or false"),
    (f"{TRAIN} --profile_steps=10", "write FROM:TO, such as 10:15"),
    (f"{TRAIN} --logdir=other", "--logdir=other: already defined as run"),
    (f"train {TINY} --logdir", "Missing value for flag --logdir"),
    (f"{TRAIN} --flagfile=nowhere", "nowhere cannot be read: No such file"),
    (f"{TRAIN} --params_dir=nowhere", "nowhere is not a directory"),
    (f"show {TINY} --format=yaml", "value should be one of <text|json>"),
    (f"show {TINY} --graph=tiny.pdf", "the name has to end in .dot or .svg"),
    (f"show {TINY} --weights --pipeline", "--weights and --pipeline show different things"),
    ("eval --run=here --step=last", "--step=last is not a step: a number, or best"),
    (f"{DECODE} --temperature=hot", "--temperature=hot: 'hot' is not a number"),
    (f"{DECODE} --top_p=2", "--top_p=2: 2.0 is not"),
    # ---- experiments and runs
    ("train --logdir=run", "no experiment given: --exp=NAME or --run=DIR"),
    (f"train {TINY}", "no directory given: --logdir=DIR"),
    ("show --exp=tniy", "no experiment 'tniy'. Did you mean 'tiny'"),
    ("show --exp=TINY", "no experiment 'TINY'. Did you mean 'tiny'"),
    ("show --exp=params.lm.source.tiny", "Did you mean 'lm.source.tiny'"),
    ("show --exp=tiny(64)", "takes field=value, got '64'"),
    ("show --exp=tiny(model_dims=64)", "no argument 'model_dims'. Did you mean 'model_dim'"),
    ("show --exp=tiny(model_dim=big)", "model_dim takes int, got 'big'"),
    ("show --exp=nowhere.py:mine", "There is no file nowhere.py"),
    ("show --run=folder", "folder is not a run directory: it holds no config.json"),
    ("train --run=nowhere", "nowhere is not a run directory"),
    ("decode --run=here", "no prompt given: --prompt='def '"),
    ("diff --exp=tiny", "diff compares two of --exp and --run"),
    ("describe feedforward", "Did you mean the class FeedForward"),
    ("describe FeedForwad", "Did you mean 'FeedForward'"),
    ("describe FeedForward.drop", "FeedForward has no field 'drop'"),
    (f"why optimizer.lr {TINY}", "AdamW has no field 'lr'. Did you mean 'learning_rate'"),
    # ---- paths
    (f"{TRAIN} --set=max_stps=3", "no field 'max_stps'. Did you mean 'max_steps'"),
    (f"{TRAIN} --set=max-steps=3", "'max-steps' is not a path"),
    (f"{TRAIN} --set=max_steps", "'max_steps' sets nothing: write path=value"),
    (f"{TRAIN} --set=max_steps:3", "'max_steps:3' sets nothing: write path=value"),
    (f"{TRAIN} --set=epochs=3", "no field 'epochs'. Did you mean 'max_steps'"),
    (f"{TRAIN} --set=lr=0.1", "no field 'lr'.* To set it wherever it is: AdamW.learning_rate"),
    (f"{TRAIN} --set=optimizer.lr=0.1", "no field 'lr'. Did you mean 'learning_rate'"),
    (f"{TRAIN} --set=AdamW.lr=0.1", "no field 'lr'. Did you mean 'learning_rate'"),
    (f"{TRAIN} --set=batch_size=8", "To set it wherever it is: TextInput.batch_size"),
    (f"{TRAIN} --set=train_input.seq_len=8", "no field 'seq_len'. Did you mean 'length'"),
    (f"{TRAIN} --set=dropout=0.1", "To set it wherever it is: .*FeedForward.dropout_rate"),
    (f"{TRAIN} --set=FeedForward.dropout=0.1", "'dropout'. Did you mean 'dropout_rate'"),
    (f"{TRAIN} --set=model_dim=64", "model_dim is an argument of tiny: write exp.model_dim=64"),
    (f"{TRAIN} --set=exp.width=64", "no argument 'width'. Did you mean 'model_dim'"),
    (f"{TRAIN} --set=task.model.stack.layer[0].dim=8", "is TransformerLayer: it has no items"),
    (f"{TRAIN} --set=eval_inputs.heldout.seed=8", r"is a dict: write eval_inputs\['heldout'\]"),
    (f"{TRAIN} --set=eval_inputs['test'].seed=8", "no item 'test'. Items: 'heldout'"),
    (f"{TRAIN} --set=checkpoint.max_to_keep=5", "'max_to_keep'. Did you mean 'keep'"),
    (f"{TRAIN} --set=runtime.data=2", "Local has no field 'data'"),
    # ---- classes
    (f"{TRAIN} --set=MoE.num_experts=8", r"--set='FeedForward=MoE\(expert=_, num_experts=8\)'"),
    (f"{TRAIN} --set=Pipeline.num_stages=4", r"--set='Stack=Pipeline\(num_stages=4\)'"),
    (f"{TRAIN} --set=LayerNorm.epsilon=1", r"--set='RmsNorm=LayerNorm\(epsilon=1\)'"),
    (f"{TRAIN} --set=Sgd.momentum=0.9", r"--set='AdamW=Sgd\(momentum=0.9\)'"),
    (f"{TRAIN} --set=Moe.num_experts=8", "There is no Moe in .* Did you mean 'MoE'"),
    (f"{TRAIN} --set=MLP.dropout_rate=0.1", "There is no MLP .* Did you mean 'FeedForward'"),
    (f"{TRAIN} --set=MoE(num_experts=8)", "sets nothing: write path=value"),
    (f"{TRAIN} --set=FeedForward=Attention", "TransformerLayer.ffn takes a Layer such as Feed"),
    (f"{TRAIN} --set=FeedForward=Dense", "no class 'Dense' to configure. Did you mean 'Linear'"),
    (f"{TRAIN} --set=TransformerLayer=Remat", r"Remat\(layer=_\) wraps what was there"),
    (f"{TRAIN} --set=Stack=Pipeline", "Pipeline needs num_stages and num_micro_batches"),
    (f"{TRAIN} --set=optimizer=SGD", "no class 'SGD' to configure. Did you mean 'Sgd'"),
    (f"{TRAIN} --set=optimizer=Stack", "takes an Optimizer, got Stack"),
    (f"{TRAIN} --set=optimizer=AdamW(0.1)", "takes field=value, got '0.1'"),
    (f"{TRAIN} --set=runtime=gpu", "Did you mean 'Local'. It takes a Runtime"),
    (f"{TRAIN} --set=runtime=Mesh(2,1)", "takes field=value, got '2'"),
    (f"{TRAIN} --set=runtime=Mesh(dp=2)", "no field 'dp'. Did you mean 'data'"),
    (f"{TRAIN} --set=Attention.positions=rope", "Did you mean 'Rotary'"),
    # ---- values
    (f"{TRAIN} --set=max_steps=1e3", "takes int, got '1e3'. Write 1000"),
    (f"{TRAIN} --set=max_steps=1k", "takes int, got '1k'"),
    (f"{TRAIN} --set=max_steps=0", "max_steps=0 is not positive"),
    (f"{TRAIN} --set=max_steps=3,seed=1", "takes int, got '3,seed=1'"),
    (f"{TRAIN} --set=optimizer.learning_rate=high", "takes float, got 'high'"),
    (f"{TRAIN} --set=optimizer.learning_rate=-1", "learning_rate=-1.0 is negative"),
    (f"{TRAIN} --set=optimizer.learning_rate=", "takes float, got ''"),
    (f"{TRAIN} --set=seed=None", "takes int, got 'None'"),
    (f"{TRAIN} --set=guard=None", "takes a Guard, got 'None'"),
    (f"{TRAIN} --set=task.dtype=fp16", "got 'fp16'. Did you mean 'float16'"),
    (f"{TRAIN} --set=task.dtype=bf16", "got 'bf16'. Did you mean 'bfloat16'"),
    (f"{TRAIN} --set=task.dtype=fp32", "got 'fp32'. Did you mean 'float32'"),
    (f"{TRAIN} --set=FeedForward.activation=swish", "got 'swish'. Did you mean 'silu'"),
    (f"{TRAIN} --set=FeedForward.activation=GELU", r"got 'GELU'. Did you mean 'gelu'\?$"),
    (f"{TRAIN} --set=FeedForward.dropout_rate=10%", "takes float, got '10%'"),
    (f"{TRAIN} --set=FeedForward.dropout_rate=1.5", r"dropout_rate=1.5 is not in \[0, 1\)"),
    (f"{TRAIN} --set=Attention.num_heads=3", "dim=128 is not a multiple of num_heads=3"),
    (f"{TRAIN} --set=train_input.source=data.txt", "takes a DocumentSource, got 'data.txt'"),
    (f"{TRAIN} --set=train_input.source=TextFiles", "TextFiles needs pattern"),
    (f"{TRAIN} --set=accumulation_steps=3", "does not split into accumulation_steps=3"),
    (f"{TRAIN} --set=evaluate.metric=loss", "'loss' is not input/metric .*: heldout, keras"),
    (f"{TRAIN} --set=evaluate.patience=3", "patience=3 needs a metric to compare by"),
    (f"{TRAIN} --set=evaluate.weights=ema", "needs optimizer.ema_decay, which is None"),
    (
        f"{TRAIN} --set=init_from=run2",
        "There is no class 'run2' to configure. It takes a WarmStart",
    ),
    # ---- sweeps and tokenizers
    (f"sweep {TINY} --logdir=run", "nothing to sweep: --sweep=path=a,b,c"),
    (f"sweep {TINY} --logdir=run --sweep=optimizer.lr=1,2", "Did you mean 'learning_rate'"),
    (f"sweep {TINY} --logdir=run --sweep=seed=1,2 --metric=los", "metric 'los' is not"),
    ("tokenizer --vocab_size=1000", "a tokenizer needs --vocab_size=NUMBER and --out"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_on_the_command_line_is_told(line, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("folder").mkdir()

    assert main(shlex.split(line.replace("'", r"\'"))) == 2

    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(message, err, re.MULTILINE)
    assert len(err.splitlines()) <= 3
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
