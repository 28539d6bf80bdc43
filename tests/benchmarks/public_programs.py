"""Ten programs of Keras's gallery with a step that Python or memory may limit: layers, sizes and batch size as published.

| program | keras.io | its batch size |
| --- | --- | --- |
| digits | "Simple MNIST convnet" | 128 |
| fraud | "Imbalanced classification: credit card fraud detection" | 2048 |
| movies | "Collaborative Filtering for Movie Recommendations" | 64 |
| heart | "Structured data classification with FeatureSpace", after its encoding | 32 |
| addition | "Sequence to sequence learning for performing number addition" | 32 |
| anomaly | "Timeseries anomaly detection using an Autoencoder" | 128 |
| denoising | "Convolutional autoencoder for image denoising" | 128 |
| engines | "Timeseries classification with a Transformer model" | 64 |
| reviews | "Text classification with Transformer" | 32 |
| gan | "GAN overriding `Model.train_step`", on TensorFlow | 64 |

Their data is made here. `digits` and `reviews` are those of `public_jobs.py`.
"""

import keras
import numpy as np
from keras import layers
from public_jobs import ADAM, digits, digits_model, reviews, reviews_model

__all__ = ["digits", "digits_model", "reviews", "reviews_model"]


def _random():
    return np.random.default_rng(0)


def fraud_model():
    """Three dense layers of 256 on 30 figures."""
    network = keras.Sequential([keras.Input((30,)), layers.Dense(256, "relu"), layers.Dense(256, "relu")])
    for layer in (layers.Dropout(0.3), layers.Dense(256, "relu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid")):
        network.add(layer)
    metrics = [keras.metrics.Precision(), keras.metrics.Recall()]
    network.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
    return network


def fraud():
    """227,846 rows of 30 figures, and 0 or 1."""
    return _random().normal(size=(227_846, 30)).astype("float32"), _random().integers(0, 2, (227_846, 1)).astype("uint8")


class Recommender(keras.Model):
    """The product of a user's and a film's embedding of 50 figures, with biases."""

    def __init__(self):
        super().__init__()
        options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-6)}
        self.user, self.film = layers.Embedding(610, 50, **options), layers.Embedding(9724, 50, **options)
        self.of_user, self.of_film = layers.Embedding(610, 1), layers.Embedding(9724, 1)

    def call(self, pairs):
        """(batch, 2) to (batch, 1)."""
        user, film = pairs[:, 0], pairs[:, 1]
        both = keras.ops.sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return keras.ops.sigmoid(both + self.of_user(user) + self.of_film(film))


def movies_model():
    """A `Recommender`."""
    model = Recommender()
    model.compile(keras.optimizers.Adam(0.001), "binary_crossentropy")
    return model


def movies():
    """90,752 pairs of user and film, and a rating from 0 to 1."""
    draw = _random()
    pairs = np.stack([draw.integers(0, 610, 90_752), draw.integers(0, 9724, 90_752)], axis=1)
    return pairs, draw.random(90_752)


def heart_model():
    """A dense layer of 32 on the encoded features."""
    network = keras.Sequential([keras.Input((138,)), layers.Dense(32, "relu"), layers.Dropout(0.5)])
    network.add(layers.Dense(1, "sigmoid"))
    network.compile(ADAM, "binary_crossentropy", metrics=["accuracy"])
    return network


def heart():
    """242 patients with 138 encoded figures, 40 times, and 0 or 1."""
    return _random().random((242 * 40, 138), "float32"), _random().integers(0, 2, (242 * 40, 1))


def addition_model():
    """An LSTM of 128 units reads "535+61", another writes "596"."""
    network = keras.Sequential([keras.Input((7, 12)), layers.LSTM(128), layers.RepeatVector(4)])
    network.add(layers.LSTM(128, return_sequences=True))
    network.add(layers.Dense(12, "softmax"))
    network.compile(ADAM, "categorical_crossentropy", metrics=["accuracy"])
    return network


def addition():
    """45,000 questions of 7 characters and answers of 4, one-hot of 12."""
    draw, one_hot = _random(), np.eye(12, dtype=bool)
    return one_hot[draw.integers(0, 12, (45_000, 7))], one_hot[draw.integers(0, 12, (45_000, 4))]


def anomaly_model():
    """One-dimensional convolutions to a quarter of the length and back."""
    options = {"padding": "same", "strides": 2}
    network = keras.Sequential([keras.Input((288, 1)), layers.Conv1D(32, 7, activation="relu", **options)])
    network.add(layers.Dropout(0.2))
    network.add(layers.Conv1D(16, 7, activation="relu", **options))
    network.add(layers.Conv1DTranspose(16, 7, activation="relu", **options))
    network.add(layers.Dropout(0.2))
    network.add(layers.Conv1DTranspose(32, 7, activation="relu", **options))
    network.add(layers.Conv1DTranspose(1, 7, padding="same"))
    network.compile(keras.optimizers.Adam(0.001), "mse")
    return network


def anomaly():
    """3,745 windows of 288 figures, which are their own target."""
    windows = _random().normal(size=(3745, 288, 1))
    return windows, windows


def denoising_model():
    """Convolutions with pooling, and back."""
    network = keras.Sequential([keras.Input((28, 28, 1))])
    for _ in range(2):
        network.add(layers.Conv2D(32, 3, activation="relu", padding="same"))
        network.add(layers.MaxPooling2D(2, padding="same"))
    for _ in range(2):
        network.add(layers.Conv2DTranspose(32, 3, strides=2, activation="relu", padding="same"))
    network.add(layers.Conv2D(1, 3, activation="sigmoid", padding="same"))
    network.compile(ADAM, "binary_crossentropy")
    return network


def denoising():
    """60,000 pictures, which are their own target."""
    pictures = _random().random((60_000, 28, 28, 1), "float32")
    return pictures, pictures


def engines_model():
    """Four transformer blocks on 500 figures."""
    x = inputs = keras.Input((500, 1))
    for _ in range(4):
        attended = layers.Dropout(0.25)(layers.MultiHeadAttention(4, 256, dropout=0.25)(x, x))
        x = layers.LayerNormalization(epsilon=1e-6)(attended) + x
        mapped = layers.Conv1D(1, 1)(layers.Dropout(0.25)(layers.Conv1D(4, 1, activation="relu")(x)))
        x = layers.LayerNormalization(epsilon=1e-6)(mapped) + x
    x = layers.Dense(128, "relu")(layers.GlobalAveragePooling1D(data_format="channels_last")(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.Dropout(0.4)(x)))
    model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
    return model


def engines():
    """2,880 series of 500 figures, and their classes."""
    return _random().normal(size=(2880, 500, 1)), _random().integers(0, 2, 2880)


class Gan(keras.Model):
    """A generator and a discriminator for pictures of 28 x 28, trained one after the other in each step."""

    def __init__(self):
        super().__init__()
        leaky = [layers.LeakyReLU(negative_slope=0.2) for _ in range(5)]
        options = {"strides": 2, "padding": "same"}
        self.judge = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Conv2D(64, 3, **options),
                leaky[0],
                layers.Conv2D(128, 3, **options),
                leaky[1],
                layers.GlobalMaxPooling2D(),
                layers.Dense(1),
            ]
        )
        self.painter = keras.Sequential(
            [
                keras.Input((128,)),
                layers.Dense(7 * 7 * 128),
                leaky[2],
                layers.Reshape((7, 7, 128)),
                layers.Conv2DTranspose(128, 4, **options),
                leaky[3],
                layers.Conv2DTranspose(128, 4, **options),
                leaky[4],
                layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
            ]
        )
        self.seed = keras.random.SeedGenerator(0)

    def compile(self, judges, paints, loss):
        """Compile with an optimizer for each network."""
        super().compile(loss=loss)
        self.judges, self.paints, self.judged = judges, paints, loss

    def train_step(self, real):
        """Train the judge on real and made pictures, then the painter to deceive it."""
        import tensorflow as tf  # its own loop needs TensorFlow

        size = keras.ops.shape(real)[0]
        ones, zeros = keras.ops.ones((size, 1)), keras.ops.zeros((size, 1))
        made = self.painter(keras.random.normal((size, 128), seed=self.seed))
        labels = keras.ops.concatenate([ones, zeros]) + 0.05 * keras.random.uniform((2 * size, 1), seed=self.seed)
        with tf.GradientTape() as tape:
            lost = self.judged(labels, self.judge(keras.ops.concatenate([made, real])))
        weights = self.judge.trainable_weights
        self.judges.apply_gradients(zip(tape.gradient(lost, weights), weights, strict=True))
        noise = keras.random.normal((size, 128), seed=self.seed)
        with tf.GradientTape() as tape:
            deceived = self.judged(zeros, self.judge(self.painter(noise)))
        weights = self.painter.trainable_weights
        self.paints.apply_gradients(zip(tape.gradient(deceived, weights), weights, strict=True))
        return {"judge": lost, "painter": deceived}


def gan_model():
    """A `Gan`."""
    model = Gan()
    optimizers = (keras.optimizers.Adam(0.0003) for _ in range(2))
    model.compile(*optimizers, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def gan():
    """70,000 pictures, without targets."""
    return _random().random((70_000, 28, 28, 1), "float32")
