"""Fine-tune a causal language model of keras-hub with LoRA, and let autofit choose the batch size.

The model is tiny and made from a config, so that it runs anywhere without a download.
For Gemma on a T4 (16 GB), replace the body of `build_model` by

    keras.config.set_dtype_policy("mixed_float16")
    model = keras_hub.models.GemmaCausalLM.from_preset("gemma_2b_en")
    model.backbone.enable_lora(rank=4)
    model.preprocessor.sequence_length = 256

and give `tune` device_memory="90%": the batch size that fits depends on the rank, the
sequence length and the policy.

    pip install keras-hub
    KERAS_BACKEND=jax python examples/lora.py
"""

import keras
import keras_hub
import numpy as np

import autofit

SEQUENCE_LENGTH = 32
WORDS = [
    "the",
    "model",
    "reads",
    "a",
    "short",
    "text",
    "and",
    "learns",
    "to",
    "write",
    "its",
    "next",
    "word",
]


def build_model() -> keras.Model:
    """Return a compiled language model.

    Its backbone trains low-rank updates of its weights only.
    """
    tokens = ["!", "\u0120", *sorted(set("".join(WORDS))), "th"]
    vocabulary = {
        token: number for number, token in enumerate(["<|endoftext|>", *tokens])
    }
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["t h"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(
        tokenizer, sequence_length=SEQUENCE_LENGTH
    )
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(vocabulary),
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=SEQUENCE_LENGTH,
    )
    backbone.enable_lora(rank=4)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=preprocessor)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-4),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def texts(count: int = 512) -> np.ndarray:
    """Return made-up sentences, shape (count,)."""
    rng = np.random.default_rng(0)
    return np.array([" ".join(rng.choice(WORDS, 12)) for _ in range(count)])


if __name__ == "__main__":
    x = texts()
    result = autofit.tune(build_model, x, max_trials=6)
    model = build_model()
    model.fit(x, **result.fit_kwargs)
