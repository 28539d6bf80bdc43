"""Memory that `estimate --gpu` expects at batch sizes that others report to train, or to run out of
memory.

    KERAS_BACKEND=jax JAX_PLATFORMS=cpu python tests/benchmarks/published_gpus.py

Needs the extra `gpus` and keras-hub, no GPU. The models are Keras's, which are not line for line
those of the reports. Sources: google/flax examples/imagenet/README.md;
mlcommons/algorithmic-efficiency 644 and 744; NVIDIA/DeepLearningExamples,
TensorFlow2/LanguageModeling/BERT, TensorFlow/LanguageModeling/BERT and
TensorFlow2/Classification/ConvNets/efficientnet_v1 (XLA on, README and scripts).
"""

import time

import jax
import keras
import keras_hub
import numpy as np
from keras import layers

from autofit.backends import absent_gpu
from autofit.backends.absent_gpu import find
from autofit.backends.jax.step_footprint import StepFootprint
from autofit.backends.protocol import TrainStep

GIB = 2**30
WORDS = 384  # of a question and its paragraph


def resnet(activation="relu"):
    """ResNet50 on ImageNet."""
    model = keras.applications.ResNet50(weights=None, classes=1000)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    if activation != "relu":
        model = keras.models.clone_model(
            model, clone_function=lambda layer: _activated(layer, activation)
        )
        optimizer = "adamw"
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, _pictures()


def _activated(layer, activation):
    if (
        isinstance(layer, layers.Activation)
        and layer.get_config()["activation"] == "relu"
    ):
        return layers.Activation(activation, name=layer.name)
    return layer.__class__.from_config(layer.get_config())


def efficientnet():
    """EfficientNetB0 on ImageNet."""
    model = keras.applications.EfficientNetB0(weights=None, classes=1000)
    model.compile(
        keras.optimizers.RMSprop(0.01, momentum=0.9), "sparse_categorical_crossentropy"
    )
    return model, _pictures()


def _pictures():
    return np.zeros((2, 224, 224, 3), "float32"), np.zeros((2,), "int32"), None


def bert():
    """BERT-Large that answers questions (SQuAD)."""
    sizes = {
        "num_layers": 24,
        "num_heads": 16,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
    }
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=30522, dropout=0.1, max_sequence_length=512, **sizes
    )
    ends = layers.Dense(2, dtype="float32")(backbone.output["sequence_output"])
    outputs = [
        layers.Lambda(lambda logits, end=end: logits[..., end])(ends)
        for end in range(2)
    ]
    model = keras.Model(backbone.input, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-5), loss=[loss, loss])
    inputs = {
        name: np.ones((2, WORDS), "int32")
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    return model, (inputs, [np.zeros((2,), "int32"), np.zeros((2,), "int32")], None)


def resnet34():
    """ResNet-34 without an optimizer, as in the report."""
    stacks = {
        "stackwise_num_filters": [64, 128, 256, 512],
        "stackwise_num_blocks": [3, 4, 6, 3],
    }
    stem = {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [7],
        "stackwise_num_strides": [1, 2, 2, 2],
    }
    backbone = keras_hub.models.ResNetBackbone(
        **stacks, **stem, block_type="basic_block", image_shape=(224, 224, 3)
    )
    outputs = layers.Dense(1000)(layers.GlobalAveragePooling2D()(backbone.output))
    return keras.Model(backbone.input, outputs), {"images": ((224, 224, 3), "float32")}


def bert_base():
    """BERT-Base, texts of 32 tokens."""
    backbone = keras_hub.models.BertBackbone(
        30522,
        num_layers=12,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        dropout=0.0,
        max_sequence_length=512,
    )
    model = keras.Model(
        backbone.input, layers.Dense(2)(backbone.output["pooled_output"])
    )
    return model, dict.fromkeys(
        ("token_ids", "segment_ids", "padding_mask"), ((32,), "int32")
    )


def vit():
    """ViT-B/16, pictures of 96 pixels."""
    sizes = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(96, 96, 3), patch_size=16, dropout_rate=0.0, **sizes
    )
    first = layers.Lambda(lambda tokens: tokens[:, 0])(backbone.output)
    return keras.Model(backbone.input, layers.Dense(1000)(first)), {
        "images": ((96, 96, 3), "float32")
    }


GRADIENTS = [  # what, measured GiB by batch size, without weights, with what CUDA loads
    ("ResNet-34", resnet34, {16: 0.737, 32: 1.015, 64: 1.850, 128: 3.529}),
    ("BERT-Base", bert_base, {64: 2.050}),
    ("ViT-B/16", vit, {64: 2.228}),
]


def gradient_bytes(model, inputs, size, gpu):
    """Bytes, without the weights, of the gradients of a step's loss, in inference mode as in the
    report.
    """
    sharding = jax.sharding.SingleDeviceSharding(absent_gpu.target_of(gpu))

    def spec(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def loss(weights, others, x, y):
        logits, _ = model.stateless_call(weights, others, x, training=False)
        return keras.ops.mean(
            keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        )

    weights, others = (
        [spec(variable.shape, variable.dtype) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    x = {name: spec((size, *shape), dtype) for name, (shape, dtype) in inputs.items()}
    x = x.get("images", x)
    lowered = jax.jit(jax.grad(loss)).lower(weights, others, x, spec((size,), "int32"))
    program = absent_gpu.compiled(lambda flags: lowered.compile(compiler_options=flags))
    return absent_gpu.compiled_bytes(program.memory_analysis())[1]


FLOAT = "float32"
MIXED = "mixed_float16"
POINTS = [  # what, precision, GPU, batch sizes that trained, and that ran out of memory
    ("ResNet50", resnet, {}, FLOAT, "V100-16GB", (64, 128), ()),
    ("ResNet50", resnet, {}, MIXED, "V100-16GB", (256,), ()),
    (
        "ResNet50, SiLU",
        resnet,
        {"activation": "silu"},
        FLOAT,
        "V100-16GB",
        (64,),
        (128,),
    ),
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
    (gpu,) = find(["A100-40GB"])
    keras.config.set_dtype_policy(FLOAT)
    print(
        "gradients on an A100 of 40 GB, float32, by nvidia-smi: MatDag/bench_hvp, "
        "figures/bench_hvp_memory_jax.png"
    )
    for name, build, measured in GRADIENTS:
        model, inputs = build()
        for size, gib in measured.items():
            expected = gradient_bytes(model, inputs, size, gpu) / GIB
            print(
                f"{name:14}  {size:5}  measured {gib:5.2f} GiB  estimated {expected:5.2f} GiB "
                f" {expected / gib - 1:+.0%}"
            )
    print()
    print(
        "model           precision      GPU        batch  reported  estimated  of the GPU  seconds"
    )
    for name, build, kwargs, precision, gpu_name, trained, failed in POINTS:
        keras.backend.clear_session()
        keras.config.set_dtype_policy(precision)
        step = StepFootprint(TrainStep(*build(**kwargs), None))
        (gpu,) = find([gpu_name])
        for size in (*trained, *failed):
            began = time.monotonic()
            device_bytes = step.on_gpu(gpu, size).device_bytes
            reported = "trains" if size in trained else "OOM"
            share = device_bytes / gpu.total_bytes
            row = (
                f"{name:14}  {precision:13}  {gpu.name:9}  {size:5}  {reported:8}  "
                f"{device_bytes / GIB:5.2f} GiB"
            )
            print(f"{row}  {share:10.0%}  {time.monotonic() - began:7.0f}", flush=True)


if __name__ == "__main__":
    main()
