"""Models and data whose memory is measured: nine common architectures, small enough for two cores."""

import dataclasses

import keras
import numpy as np
from keras import layers


def mlp():
    inputs = x = _input(mlp)
    for _ in range(3):
        x = layers.Dropout(0.2)(layers.Dense(1024, activation="relu")(x))
    return inputs, x


def cnn():
    inputs = x = _input(cnn)
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return inputs, layers.Dense(128, activation="relu")(layers.Flatten()(x))


def _residual(x, width, stride):
    def normed(y, width, kernel, stride=1):
        return layers.BatchNormalization()(layers.Conv2D(width, kernel, stride, padding="same", use_bias=False)(y))

    short = x if stride == 1 and x.shape[-1] == width else normed(x, width, 1, stride)
    y = layers.Activation("relu")(normed(x, width, 3, stride))
    return layers.Activation("relu")(layers.Add()([short, normed(y, width, 3)]))


def resnet():
    inputs = x = _input(resnet)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for width, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        x = _residual(x, width, stride)
    return inputs, layers.GlobalAveragePooling2D()(x)


def mobilenetv2():
    base = keras.applications.MobileNetV2(input_tensor=_input(mobilenetv2), **_NO_TOP)
    return base.input, base.output


def efficientnetb0():
    base = keras.applications.EfficientNetB0(input_tensor=_input(efficientnetb0), **_NO_TOP)
    return base.input, base.output


def lstm():
    inputs = _input(lstm)
    return inputs, layers.LSTM(64)(layers.LSTM(128, return_sequences=True)(inputs))


def transformer():
    inputs = _input(transformer)
    x = layers.Embedding(1000, 64)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(64)(layers.Dense(256, activation="gelu")(x))]))
    return inputs, layers.GlobalAveragePooling1D()(x)


def unet():
    inputs = x = _input(unet)
    skips = []
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(width, 2, 2)(x), skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return inputs, x


def cnn3d():
    inputs = x = _input(cnn3d)
    for width in (8, 16, 32):
        x = layers.Conv3D(width, 3, strides=2, padding="same", activation="relu")(x)
    return inputs, layers.Flatten()(x)


@dataclasses.dataclass(frozen=True)
class Form:
    """Shape of a model's sample and label, and the batch size of the first of two probes (the second is twice it)."""

    sample: tuple
    first_probe: int
    dtype: str = "float32"
    label: tuple = ()


MODELS = {
    mlp: Form((256,), 64),
    cnn: Form((32, 32, 3), 16),
    resnet: Form((32, 32, 3), 16),
    mobilenetv2: Form((64, 64, 3), 4),
    efficientnetb0: Form((64, 64, 3), 4),
    lstm: Form((64, 32), 16),
    transformer: Form((64,), 8, "int32"),
    unet: Form((64, 64, 3), 4, label=(64, 64)),
    cnn3d: Form((16, 32, 32, 1), 4),
}
BY_NAME = {build.__name__: build for build in MODELS}
CLASSES = 10
_NO_TOP = {"include_top": False, "weights": None, "pooling": "avg"}


def _input(build):
    return layers.Input(MODELS[build].sample, dtype=MODELS[build].dtype)


def build_model(name, precision="float32", optimizer="adam", xla=False):
    """Compiled model `name`; precision is float32 or mixed_float16, optimizer adam or sgd."""
    keras.config.set_dtype_policy(precision)
    inputs, x = BY_NAME[name]()
    outputs = layers.Conv2D(CLASSES, 1)(x) if name == "unet" else layers.Dense(CLASSES)(x)
    model = keras.Model(inputs, layers.Activation("linear", dtype="float32")(outputs), name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], jit_compile=xla)
    return model


class Batches(keras.utils.PyDataset):
    """Random samples for the model `name`."""

    def __init__(self, name, batch_size, **kwargs):
        super().__init__(**kwargs)
        form, random = MODELS[BY_NAME[name]], np.random.default_rng(0)
        self.x = (random.random((batch_size, *form.sample)) * 1000).astype(form.dtype)
        self.y = random.integers(0, CLASSES, (batch_size, *form.label), dtype="int32")

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return self.x.copy(), self.y.copy()
