"""The study of docs/quantization.md."""
from tools.studies.trial import Trial
EXPERIMENTS = {
    "LeNet-5": ("image.lenet.digits", "image.lenet.digits_int8"),
    "ResNet": ("image.resnet.glyphs(epochs=2.0)", "image.resnet.glyphs_int8"),
    "tiny": ("lm.source.tiny", "lm.source.tiny_int8"),
}
