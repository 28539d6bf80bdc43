"""Training scripts as people write them: each sets the batch size, 32, in another way."""

HEAD = """\
import numpy as np
import keras

x = np.random.default_rng(0).normal(size=(512, 8)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
TFDATA = (
    HEAD
    + "import tensorflow as tf\n\nds = tf.data.Dataset.from_tensor_slices((x, y))\n"
)
GRAIN = (
    HEAD
    + "import grain\n\nclass Pairs:\n    def __len__(self):\n        return 512\n\n"
    + "    def __getitem__(self, i):\n        return x[i], y[i]\n\n"
)

# name: (text, arguments, where the batch size is set)
PLACES = {
    "constant": (
        HEAD + "BATCH_SIZE = 32\nmodel.fit(x, y, batch_size=BATCH_SIZE)\n",
        "line 8",
    ),
    "attribute": (
        HEAD
        + "class Config:\n    batch = 32\n\nmodel.fit(x, y, Config.batch, epochs=1)\n",
        "line 9",
    ),
    "default": (
        HEAD
        + "def train(batch_size=32):\n    model.fit(x, y, batch_size=batch_size)\n\ntrain()\n",
        "line 8",
    ),
    "literal": (HEAD + "model.fit(x, y, batch_size=32)\n", "line 8"),
    "none": (HEAD + "model.fit(x, y, epochs=1)\n", "added, line 8"),
    "params": (
        HEAD + 'params = {"batch_size": 32}\nmodel.fit(x, y, **params)\n',
        "line 8",
    ),
    "dataclass": (
        HEAD
        + "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    bs: int = 32\n\n"
        + "o = Options()\nmodel.fit(x, y, batch_size=o.bs)\n",
        "line 12",
    ),
    "environment": (
        HEAD
        + 'import os\nBS = int(os.environ.get("BS", "32"))\nmodel.fit(x, y, batch_size=BS)\n',
        "line 9",
    ),
    "argparse": (
        HEAD
        + "import argparse\n\np = argparse.ArgumentParser()\n"
        + 'p.add_argument("--batch-size", "-b", type=int, default=32)\n'
        + "args = p.parse_args()\nmodel.fit(x, y, batch_size=args.batch_size)\n",
        "--batch-size",
    ),
    "click": (
        HEAD
        + 'import click\n\n@click.command()\n@click.option("--batch", default=32)\n'
        + "def main(batch):\n    model.fit(x, y, batch_size=batch)\n\nmain()\n",
        "--batch",
    ),
    "absl": (
        HEAD
        + 'from absl import app, flags\n\nflags.DEFINE_integer("bs", 32, "batch size")\n\n'
        + "def main(_):\n    model.fit(x, y, batch_size=flags.FLAGS.bs)\n\napp.run(main)\n",
        "--bs",
    ),
    "yaml": (
        HEAD
        + 'import yaml\n\nwith open("config.yaml") as file:\n    c = yaml.safe_load(file)\n'
        + 'model.fit(x, y, batch_size=c["train"]["batch_size"])\n',
        "config.yaml",
    ),
    "batch": (TFDATA + "ds = ds.shuffle(512).batch(32)\nmodel.fit(ds)\n", "line 11"),
    "tensorflow first": (
        "import tensorflow as tf\n" + HEAD + "model.fit(x, y, batch_size=32)\n",
        "line 9",
    ),
    "library": (
        HEAD
        + "ds = keras.utils.timeseries_dataset_from_array(x, y, sequence_length=1, batch_size=32)\n"
        + "model.fit(ds.map(lambda a, b: (a[:, 0], b)))\n",
        "line 8",
    ),
    "pydataset": (
        HEAD
        + "class Data(keras.utils.PyDataset):\n"
        + "    def __init__(self, size, **kwargs):\n"
        + "        super().__init__(**kwargs)\n        self.size = size\n\n"
        + "    def __len__(self):\n        return 512 // self.size\n\n"
        + "    def __getitem__(self, i):\n"
        + "        rows = slice(i * self.size, (i + 1) * self.size)\n"
        + "        return x[rows], y[rows]\n\n"
        + "batch = 32\ntrain = Data(batch)\nmodel.fit(train)\n",
        "line 20",
    ),
    "constant read by methods": (
        HEAD
        + "BATCH_SIZE = 32\n\nclass Data(keras.utils.PyDataset):\n"
        + "    def __len__(self):\n        return 512 // BATCH_SIZE\n\n"
        + "    def __getitem__(self, i):\n"
        + "        rows = slice(i * BATCH_SIZE, (i + 1) * BATCH_SIZE)\n"
        + "        return x[rows], y[rows]\n\n"
        + "model.fit(Data())\n",
        "line 8",
    ),
    "after a fork": (
        HEAD
        + "import os\n\nchild = os.fork()\nif not child:\n    os._exit(0)\n"
        + "os.waitpid(child, 0)\nmodel.fit(x, y, batch_size=32)\n",
        "line 14",
    ),
    "generator": (
        HEAD
        + "def batches(batch_size):\n    while True:\n"
        + "        rows = np.random.default_rng(0).integers(0, 512, batch_size)\n"
        + "        yield x[rows], y[rows]\n\n"
        + "BATCH = 32\nmodel.fit(batches(BATCH), steps_per_epoch=512 // BATCH)\n",
        "line 13",
    ),
    "loader": (
        HEAD
        + "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\n"
        + "pairs = TensorDataset(torch.tensor(x), torch.tensor(y))\n"
        + "model.fit(DataLoader(pairs, 32))\n",
        "line 12",
    ),
    "grain loader": (
        GRAIN
        + "sampler = grain.samplers.IndexSampler(512, seed=0, num_epochs=1)\n"
        + "batches = grain.transforms.Batch(batch_size=32)\n"
        + "model.fit(grain.DataLoader("
        + "data_source=Pairs(), sampler=sampler, operations=[batches]))\n",
        "line 18",
    ),
    "grain dataset": (
        GRAIN
        + "ds = grain.MapDataset.source(Pairs()).to_iter_dataset()\n"
        + "model.fit(ds.batch(32))\n",
        "line 18",
    ),
    # traps: a constant of the name that is dead, and one that is multiplied and not used
    "dead": (
        HEAD
        + "batch_size = 64\nbatch_size = 32\nmodel.fit(x, y, batch_size=batch_size)\n",
        "line 9",
    ),
    "unused": (
        TFDATA + "batch_size = 32\nprint(batch_size * 2)\nmodel.fit(ds.batch(32))\n",
        "line 13",
    ),
}
