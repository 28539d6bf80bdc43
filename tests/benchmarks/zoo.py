"""Models and data whose memory is measured: nine common nets, small enough for two cores."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import layers


def mlp(x):
    for _ in range(3):
        x = layers.Dropout(0.2)(layers.Dense(1024, activation="relu")(x))
    return x


def cnn(x):
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return layers.Dense(128, activation="relu")(layers.Flatten()(x))


def _residual(x, width, stride):
    def normed(y, width, kernel, stride=1):
        return layers.BatchNormalization()(
            layers.Conv2D(width, kernel, stride, padding="same", use_bias=False)(y)
        )

    short = x if stride == 1 and x.shape[-1] == width else normed(x, width, 1, stride)
    y = layers.Activation("relu")(normed(x, width, 3, stride))
    return layers.Activation("relu")(layers.Add()([short, normed(y, width, 3)]))


def resnet(x):
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    for width, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        x = _residual(x, width, stride)
    return layers.GlobalAveragePooling2D()(x)


def lstm(x):
    return layers.LSTM(64)(layers.LSTM(128, return_sequences=True)(x))


def transformer(x):
    x = layers.Embedding(1000, 64)(x)
    for _ in range(2):
        x = layers.LayerNormalization()(
            layers.Add()([x, layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)])
        )
        x = layers.LayerNormalization()(
            layers.Add()([x, layers.Dense(64)(layers.Dense(256, activation="gelu")(x))])
        )
    return layers.GlobalAveragePooling1D()(x)


def unet(x):
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
    return x


def cnn3d(x):
    for width in (8, 16, 32):
        x = layers.Conv3D(width, 3, strides=2, padding="same", activation="relu")(x)
    return layers.Flatten()(x)


class Form(NamedTuple):
    """A model's layers, the shapes of its sample and label, and the batch size of the first of two
    probes of b and 2b.
    """

    build: Callable
    sample: tuple
    first_probe: int
    dtype: str = "float32"
    label: tuple = ()


MODELS = {
    "mlp": Form(mlp, (256,), 64),
    "cnn": Form(cnn, (32, 32, 3), 16),
    "resnet": Form(resnet, (32, 32, 3), 16),
    "mobilenetv2": Form(
        lambda x: keras.applications.MobileNetV2(input_tensor=x, **_NO_TOP).output,
        (64, 64, 3),
        4,
    ),
    "efficientnetb0": Form(
        lambda x: keras.applications.EfficientNetB0(input_tensor=x, **_NO_TOP).output,
        (64, 64, 3),
        4,
    ),
    "lstm": Form(lstm, (64, 32), 16),
    "transformer": Form(transformer, (64,), 8, "int32"),
    "unet": Form(unet, (64, 64, 3), 4, label=(64, 64)),
    "cnn3d": Form(cnn3d, (16, 32, 32, 1), 4),
}
CLASSES = 10
_NO_TOP = {"include_top": False, "weights": None, "pooling": "avg"}


def build_model(name, precision="float32", optimizer="adam", xla=False):
    """Compiled model `name`; precision is float32 or mixed_float16, optimizer adam or sgd."""
    keras.config.set_dtype_policy(precision)
    form = MODELS[name]
    inputs = layers.Input(form.sample, dtype=form.dtype)
    x = form.build(inputs)
    outputs = (
        layers.Conv2D(CLASSES, 1)(x) if name == "unet" else layers.Dense(CLASSES)(x)
    )
    model = keras.Model(
        inputs, layers.Activation("linear", dtype="float32")(outputs), name=name
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], jit_compile=xla)
    return model


class Batches(keras.utils.PyDataset):
    def __init__(self, name, batch_size, **kwargs):
        super().__init__(**kwargs)
        form = MODELS[name]
        random = np.random.default_rng(0)
        self.x = (random.random((batch_size, *form.sample)) * 1000).astype(form.dtype)
        self.y = random.integers(0, CLASSES, (batch_size, *form.label), dtype="int32")

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return self.x.copy(), self.y.copy()
