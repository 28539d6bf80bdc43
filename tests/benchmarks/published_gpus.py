"""Memory that `estimate --gpu` expects at batch sizes that others report to train, or to run out of memory.

    KERAS_BACKEND=jax JAX_PLATFORMS=cpu python tests/benchmarks/published_gpus.py

Needs the extra `gpus` and keras-hub, no GPU. The models are Keras's, which are not line for line those of the reports.
Sources: google/flax examples/imagenet/README.md; mlcommons/algorithmic-efficiency 644 and 744;
NVIDIA/DeepLearningExamples, TensorFlow2/LanguageModeling/BERT, TensorFlow/LanguageModeling/BERT and
TensorFlow2/Classification/ConvNets/efficientnet_v1 (XLA on, README and scripts).
"""

import time

import keras
import keras_hub
import numpy as np
from keras import layers

from autofit.backends.jax.step_footprint import StepFootprint
from autofit.backends.protocol import TrainStep
from autofit.records.gpu_models import find

GIB = 2**30
WORDS = 384  # of a question and its paragraph


def resnet(activation="relu"):
    """ResNet50 on ImageNet."""
    model = keras.applications.ResNet50(weights=None, classes=1000)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    if activation != "relu":
        model = keras.models.clone_model(model, clone_function=lambda layer: _activated(layer, activation))
        optimizer = "adamw"
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, _pictures()


def _activated(layer, activation):
    if isinstance(layer, layers.Activation) and layer.get_config()["activation"] == "relu":
        return layers.Activation(activation, name=layer.name)
    return layer.__class__.from_config(layer.get_config())


def efficientnet():
    """EfficientNetB0 on ImageNet."""
    model = keras.applications.EfficientNetB0(weights=None, classes=1000)
    model.compile(keras.optimizers.RMSprop(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    return model, _pictures()


def _pictures():
    return np.zeros((2, 224, 224, 3), "float32"), np.zeros((2,), "int32"), None


def bert():
    """BERT-Large that answers questions (SQuAD)."""
    sizes = {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "intermediate_dim": 4096}
    backbone = keras_hub.models.BertBackbone(vocabulary_size=30522, dropout=0.1, max_sequence_length=512, **sizes)
    ends = layers.Dense(2, dtype="float32")(backbone.output["sequence_output"])
    outputs = [layers.Lambda(lambda logits, end=end: logits[..., end])(ends) for end in range(2)]
    model = keras.Model(backbone.input, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-5), loss=[loss, loss])
    inputs = {name: np.ones((2, WORDS), "int32") for name in ("token_ids", "segment_ids", "padding_mask")}
    return model, (inputs, [np.zeros((2,), "int32"), np.zeros((2,), "int32")], None)


FLOAT, MIXED = "float32", "mixed_float16"
POINTS = [  # what, precision, GPU, batch sizes that trained, and that ran out of memory
    ("ResNet50", resnet, {}, FLOAT, "V100-16GB", (64, 128), ()),
    ("ResNet50", resnet, {}, MIXED, "V100-16GB", (256,), ()),
    ("ResNet50, SiLU", resnet, {"activation": "silu"}, FLOAT, "V100-16GB", (64,), (128,)),
    ("EfficientNetB0", efficientnet, {}, FLOAT, "V100-32GB", (256,), ()),
    ("EfficientNetB0", efficientnet, {}, MIXED, "V100-32GB", (512,), ()),
    ("EfficientNetB0", efficientnet, {}, FLOAT, "A100-80GB", (512,), ()),
    ("EfficientNetB0", efficientnet, {}, MIXED, "A100-80GB", (1024,), ()),
    ("BERT-Large", bert, {}, FLOAT, "V100-16GB", (3,), (6,)),
    ("BERT-Large", bert, {}, MIXED, "V100-16GB", (6,), ()),
    ("BERT-Large", bert, {}, FLOAT, "V100-32GB", (8,), (12,)),
    ("BERT-Large", bert, {}, MIXED, "V100-32GB", (12,), ()),
    ("BERT-Large", bert, {}, FLOAT, "A100-40GB", (16,), (32,)),
    ("BERT-Large", bert, {}, MIXED, "A100-40GB", (32,), ()),
    ("BERT-Large", bert, {}, FLOAT, "A100-80GB", (38,), (76,)),
    ("BERT-Large", bert, {}, MIXED, "A100-80GB", (76,), ()),
]


def main():
    print("model           precision      GPU        batch  reported  estimated  of the GPU  seconds")
    for name, build, kwargs, precision, gpu_name, trained, failed in POINTS:
        keras.backend.clear_session()
        keras.config.set_dtype_policy(precision)
        step, (gpu,) = StepFootprint(TrainStep(*build(**kwargs), None, None)), find([gpu_name])
        for size in (*trained, *failed):
            began = time.monotonic()
            device_bytes = step.on_gpu(gpu, size).device_bytes
            reported, share = "trains" if size in trained else "OOM", device_bytes / gpu.total_bytes
            row = f"{name:14}  {precision:13}  {gpu.name:9}  {size:5}  {reported:8}  {device_bytes / GIB:5.2f} GiB"
            print(f"{row}  {share:10.0%}  {time.monotonic() - began:7.0f}", flush=True)


if __name__ == "__main__":
    main()
