"""Small real trainings: how much longer the pick of each rule takes to a loss than the best batch size does.

Digits of scikit-learn with an MLP, generated pictures with a convnet, token sequences with embeddings; Adam, and SGD
with momentum for the pictures; Keras on JAX. For each batch size and learning rate of a grid, trainings with several seeds
count the updates until the loss on held-out samples, a mean of three readings, is that of batches of 32 after
`BASE_UPDATES` updates with their best rate. Rates are those of `autofit.measure`, so a time is updates x batch / rate. The
noise scale is that of `autofit.measure_noise` at the baseline. "Raced" is the
better of goodput's pick and batches of 32, as a race that is always right would decide.
"""

import math
import os
import time

import numpy as np

BASELINE, BATCHES, SEEDS = 32, (8, 32, 128, 512, 1024), (1, 2, 3)
BASE_UPDATES, MOST_SAMPLES, READ_SAMPLES = 800, 6, 800  # most samples as a multiple of the baseline's
FACTORS = tuple(2.0**k for k in range(-3, 5))  # of the usual learning rate
KEPT_RATES = 3  # learning rates that are tried with every seed


def digits(part):
    """Handwritten digits, copied with noise so that an epoch is not two batches."""
    from sklearn.datasets import load_digits  # ships its data

    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    order = draw.permutation(len(x))
    chosen = order[:1400] if part == "training" else order[1400:]
    copies = 12 if part == "training" else 2
    rows = np.tile(x[chosen] / 16, (copies, 1))
    return (rows + 0.35 * draw.normal(size=rows.shape)).astype("float32"), np.tile(y[chosen], copies).astype("int32")


def pictures(part):
    """Bars of ten directions in noise."""
    draw = np.random.default_rng({"training": 1, "held out": 2}[part])
    count = 16_384 if part == "training" else 1024
    y = draw.integers(0, 10, count).astype("int32")
    angle, shift = y * math.pi / 10, draw.uniform(-3, 3, count)
    rows, columns = np.mgrid[:16, :16] - 7.5
    across = rows[None] * np.cos(angle)[:, None, None] + columns[None] * np.sin(angle)[:, None, None] - shift[:, None, None]
    bars = np.exp(-(across**2) / 2) + 0.9 * draw.normal(size=(count, 16, 16))
    return bars[..., None].astype("float32"), y


def texts(part):
    """Sequences of tokens: the class is the topic from which some of the tokens are drawn."""
    topics = np.random.default_rng(3).dirichlet(np.full(2000, 0.05), 12)
    draw = np.random.default_rng({"training": 4, "held out": 5}[part])
    count = 16_384 if part == "training" else 1024
    y = draw.integers(0, 12, count).astype("int32")
    tokens = draw.integers(0, 2000, (count, 40))
    for topic in range(12):
        rows = np.flatnonzero(y == topic)
        drawn = draw.choice(2000, (len(rows), 40), p=topics[topic])
        tokens[rows] = np.where(draw.random((len(rows), 40)) < 0.12, drawn, tokens[rows])
    return tokens.astype("int32"), y


def mlp(learning_rate=1e-3):
    """For the digits."""
    import keras

    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    return compiled([keras.Input((64,)), *hidden, keras.layers.Dense(10)], keras.optimizers.Adam(learning_rate))


def convnet(learning_rate=0.01):
    """For the pictures."""
    import keras

    layers = keras.layers
    body = [layers.Conv2D(8, 3, strides=2, activation="relu"), layers.Conv2D(16, 3, strides=2, activation="relu")]
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    return compiled([keras.Input((16, 16, 1)), *body, layers.Flatten(), layers.Dense(10)], optimizer)


def embeddings(learning_rate=1e-3):
    """For the texts."""
    import keras

    layers = keras.layers
    body = [layers.Embedding(2000, 32), layers.GlobalAveragePooling1D(), layers.Dense(64, activation="relu")]
    return compiled([keras.Input((40,), dtype="int32"), *body, layers.Dense(12)], keras.optimizers.Adam(learning_rate))


def compiled(layers, optimizer):
    """A model that ends in logits."""
    import keras

    model = keras.Sequential(layers)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


PROBLEMS = {"digits": (mlp, digits, 1e-3), "pictures": (convnet, pictures, 0.01), "texts": (embeddings, texts, 1e-3)}


class Trainer:
    """Trains one model with one batch size again and again, so that it is compiled once."""

    def __init__(self, build, data, batch):
        self.model, self.batch = build(), batch
        self.data, self.held_out = data("training"), data("held out")
        self.model.train_on_batch(self.data[0][:batch], self.data[1][:batch])
        self.zeros = [np.zeros(v.shape, v.dtype) for v in self.model.optimizer.variables]

    def losses(self, rate, seed, updates, target=-math.inf):
        """(updates, loss) until the target is reached, the loss is hopeless, or there are that many updates."""
        import keras

        draw, x, y = np.random.default_rng(seed), *self.data
        for variable, zeros in zip(self.model.optimizer.variables, self.zeros, strict=True):
            variable.assign(zeros)
        self.model.optimizer.learning_rate = rate
        for weight in self.model.weights:
            scale = 0.05 if len(weight.shape) == 2 and weight.shape[0] == 2000 else math.sqrt(6 / max(1, sum(weight.shape)))
            weight.assign(draw.uniform(-scale, scale, weight.shape) if len(weight.shape) > 1 else np.zeros(weight.shape))
        every, read, order = max(1, round(READ_SAMPLES / self.batch)), [], np.zeros(0, int)
        for done in range(1, updates + 1):
            if len(order) < self.batch:
                order = np.concatenate([order, draw.permutation(len(x))])
            rows, order = order[: self.batch], order[self.batch :]
            self.model.train_on_batch(x[rows], y[rows])
            if done % every == 0:
                loss = float(keras.ops.convert_to_numpy(self.model.test_on_batch(*self.held_out)))
                read.append((done, loss))
                last = [each for _, each in read[-3:]]
                if not math.isfinite(loss) or loss > 50 or (len(last) == 3 and np.mean(last) <= target):
                    break
        return read


def smoothed(read):
    """The lowest mean of three readings in a row, and the updates at which it was reached."""
    means = [(np.mean([loss for _, loss in read[i - 2 : i + 1]]), read[i][0]) for i in range(2, len(read))]
    return min(means, default=(math.inf, 0))


def measured(name):
    """What a problem needs: rates, the noise scale, and updates to the target by batch size and learning rate."""
    import autofit

    build, data, usual = PROBLEMS[name]
    training = data("training")
    trials = autofit.measure(build, training, [autofit.FitConfig(batch) for batch in BATCHES], progress=False)
    rates = {t.config.batch_size: t.measurement.samples_per_second for t in trials}
    base = Trainer(build, data, BASELINE)
    reached = {f: np.median([smoothed(base.losses(usual * f, s, BASE_UPDATES))[0] for s in SEEDS]) for f in FACTORS}
    best = min(reached, key=reached.get)
    target = 1.01 * reached[best]
    scale = autofit.measure_noise(build, training, model_kwargs={"learning_rate": usual * best}, progress=False, seconds=60)
    updates = {}
    for batch in BATCHES:
        trainer = base if batch == BASELINE else Trainer(build, data, batch)
        most = math.ceil(MOST_SAMPLES * BASE_UPDATES * BASELINE / batch)
        most = min(most, 4 * BASE_UPDATES)

        def count(factor, seed, trainer=trainer, most=most):
            read = trainer.losses(usual * factor, seed, most, target)
            lowest, at = smoothed(read)
            return at if lowest <= target else None

        first = {factor: count(factor, SEEDS[0]) for factor in FACTORS}
        kept = sorted((f for f in FACTORS if first[f]), key=first.get)[:KEPT_RATES]
        updates[batch] = {
            f: [first[f], *(count(f, seed) for seed in SEEDS[1:])] if f in kept else [first[f]] for f in FACTORS
        }
        print(f"{time.strftime('%H:%M:%S')} {name} {batch}: {updates[batch]}", flush=True)
    known = {"value": scale.value, "low": scale.low, "high": scale.high, "at": scale.at_step, "reason": scale.reason}
    return {"rates": rates, "scale": known, "best": best, "target": target, "updates": updates}


def seconds(problem, batch, factor=None):
    """The median time to the target with a learning rate, or with the best one; infinite if it is not reached."""
    by_rate = {float(f): counts for f, counts in problem["updates"][str(batch)].items()}
    chosen = by_rate if factor is None else {factor: by_rate[min(by_rate, key=lambda f: abs(math.log(f / factor)))]}
    counts = [[math.inf if c is None else c for c in each] for each in chosen.values()]
    return min(np.median(each) for each in counts) * batch / problem["rates"][str(batch)]


def regrets(problem):
    """Time of each rule's pick over that of the best batch with its best learning rate."""
    rates = {batch: problem["rates"][str(batch)] for batch in BATCHES}
    scale, best = problem["scale"]["value"] or problem["scale"]["low"], problem["best"]
    progress = {batch: (scale + BASELINE) / (scale + batch) for batch in BATCHES}
    goodput = max(BATCHES, key=lambda batch: rates[batch] * progress[batch])
    fastest = max(BATCHES, key=rates.get)
    gain = progress[goodput] * goodput / BASELINE
    is_adam = PROBLEMS[problem["name"]][0] is not convnet
    picks = {
        "goodput, rate tuned": (goodput, None),
        "goodput, its own rate": (goodput, best * (math.sqrt(gain) if is_adam else gain)),
        "samples/s, rate tuned": (fastest, None),
        "samples/s, square root": (fastest, best * math.sqrt(fastest / BASELINE)),
        "samples/s, linear": (fastest, best * fastest / BASELINE),
        "samples/s, rate kept": (fastest, best),
        "always 32, rate tuned": (BASELINE, None),
    }
    least = min(seconds(problem, batch) for batch in BATCHES)
    found = {name: (batch, seconds(problem, batch, factor) / least) for name, (batch, factor) in picks.items()}
    raced = min((found["goodput, its own rate"], found["always 32, rate tuned"]), key=lambda pick: pick[1])
    return {"goodput, ideal race": raced, **found}


def run():
    """Measure all problems; returns their figures with keys that JSON takes."""
    os.environ["KERAS_BACKEND"] = "jax"
    return [
        {"name": name, **measured(name)}  # rates and updates get text keys
        for name in PROBLEMS
    ]


def print_figures(problems):
    """Print the regret of each rule."""
    print(
        "small trainings: time to the loss of batches of 32 / that of the best batch and learning rate (inf: not reached)"
    )
    for problem in problems:
        scale = problem["scale"]
        known = scale["reason"] or f"{scale['value'] or 0:,.0f} ({scale['low']:,.0f} to {scale['high'] or math.inf:,.0f})"
        print(f"  {problem['name']}: noise scale {known}")
        times = {batch: seconds(problem, batch) for batch in BATCHES}
        print("    seconds by batch: " + ", ".join(f"{batch}: {each:.2f}" for batch, each in times.items()))
        for name, (batch, regret) in regrets(problem).items():
            print(f"    {name:24} batch {batch:5}  {regret:.2f}x")
