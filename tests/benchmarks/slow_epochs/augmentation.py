"""Pictures that tf.data turns and resizes, one at a time."""

import keras
import numpy as np
import tensorflow as tf

BATCH_SIZE = 32
CALLS = 1
PREFETCH = 1
STEPS = 1
PICTURES = 3200


def changed(picture, label):
    picture = tf.cast(picture, tf.float32) / 255
    for size in (160, 96, 192, 64):
        picture = tf.image.resize(picture, (size, size), "bicubic")
        picture = tf.image.random_flip_left_right(picture)
        picture = tf.image.random_contrast(picture, 0.8, 1.2)
    return picture, label


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    x = draw.integers(256, size=(PICTURES, 64, 64, 3), dtype="uint8")
    y = draw.integers(10, size=PICTURES)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.map(changed, num_parallel_calls=CALLS)
    data = data.batch(BATCH_SIZE).prefetch(PREFETCH)
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    data = data.with_options(options)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, strides=4, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=STEPS)
    model.fit(data, epochs=5, verbose=0)
