"""Models and data of the self-test, small enough for a CPU; each in the size that `large` asks for on a GPU."""

import keras
import numpy as np

layers = keras.layers


class Images(keras.utils.PyDataset):
    """Random images from memory, made batch by batch."""

    def __init__(self, batch_size=32, pixels=32, count=4096, in_tensorflow=False, draws=False, **kwargs):
        super().__init__(**kwargs)
        self.batch_size, self.count = batch_size, count
        self.in_tensorflow, self.draws = in_tensorflow, draws
        self.pool = np.random.default_rng(0).random((256, pixels, pixels, 3), dtype="float32")

    def __len__(self):
        return max(1, self.count // self.batch_size)

    def __getitem__(self, index):
        numbers = (index * self.batch_size + np.arange(self.batch_size)) % len(self.pool)
        if self.draws:
            numbers = np.random.randint(0, len(self.pool), self.batch_size)  # forks share its state
        x, y = self.pool[numbers], np.zeros((self.batch_size, 1), "float32")
        if self.in_tensorflow:
            import tensorflow as tf

            x = tf.image.flip_left_right(x).numpy()
        return x, y


def vectors(count=8192, width=256):
    """Arrays, which `fit` copies to the device."""
    return np.zeros((count, width), "float32"), np.zeros((count, 1), "float32")


def images_in_memory(count=2048, pixels=32):
    """Arrays of images."""
    return np.zeros((count, pixels, pixels, 3), "float32"), np.zeros((count, 1), "float32")


def sequences(count=2048, steps=64):
    """Arrays of sequences."""
    return np.zeros((count, steps, 32), "float32"), np.zeros((count, 1), "float32")


def dense(width=256, units=1024, jit_compile="auto"):
    """A perceptron."""
    model = keras.Sequential(
        [keras.Input((width,)), layers.Dense(units, "relu"), layers.Dense(units, "relu"), layers.Dense(1)]
    )
    return _compiled(model, jit_compile)


def convolutions(pixels=32, filters=32, jit_compile="auto"):
    """A small convolutional network."""
    model = keras.Sequential(
        [
            keras.Input((pixels, pixels, 3)),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )
    return _compiled(model, jit_compile)


def recurrent(steps=64, units=64, jit_compile="auto"):
    """An LSTM, which cuDNN computes on a GPU."""
    model = keras.Sequential([keras.Input((steps, 32)), layers.LSTM(units), layers.Dense(1)])
    return _compiled(model, jit_compile)


def attention(steps=64, units=64, jit_compile="auto"):
    """A block of a transformer."""
    inputs = keras.Input((steps, 32))
    x = layers.Dense(units)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, units // 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(units)(layers.Dense(4 * units, "relu")(x)))
    return _compiled(keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x))), jit_compile)


def residual(pixels=224, jit_compile="auto"):
    """ResNet50."""
    base = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=(pixels, pixels, 3))
    return _compiled(keras.Model(base.input, layers.Dense(1)(base.output)), jit_compile)


def efficient(pixels=224, jit_compile="auto"):
    """EfficientNetB0."""
    base = keras.applications.EfficientNetB0(
        weights=None, include_top=False, pooling="avg", input_shape=(pixels, pixels, 3)
    )
    return _compiled(keras.Model(base.input, layers.Dense(1)(base.output)), jit_compile)


def heavy(gib=2.0):
    """A model with one weight of so many GiB."""
    model = keras.Sequential([keras.Input((256,)), layers.Dense(int(gib * 2**20), use_bias=False), layers.Dense(1)])
    return _compiled(model, jit_compile=False)


def _compiled(model, jit_compile):
    model.compile(optimizer="adam", loss="mse", jit_compile=jit_compile)
    return model
