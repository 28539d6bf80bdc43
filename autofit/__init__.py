"""autofit finds the fastest configuration of Keras's `fit` that fits in memory.

    import autofit

    result = autofit.tune(build_model, make_data)
    model.fit(make_data(**result.data_kwargs), **result.fit_kwargs)

The examples of the functions and classes below train a model like this one on arrays:

    def build_model(width=8):
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width),
        keras.layers.Dense(1)]) model.compile("adam", "mse") return model

    x = np.random.default_rng(0).normal(size=(20_000, 4)).astype("float32")
    arrays = x, x.sum(1)

`__init__.pyi` lists the public names. Each one is loaded on first use, so importing autofit loads
none of Keras, TensorFlow, Optuna and rich.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
