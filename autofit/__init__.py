"""autofit finds the fastest configuration of Keras's `fit` that fits in memory.

    import autofit

    result = autofit.tune(build_model, make_data)
    model.fit(make_data(**result.data_kwargs), **result.fit_kwargs)

`__init__.pyi` lists the public names. Each one is loaded on first use, so importing autofit loads none of Keras,
TensorFlow, Optuna and rich.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
