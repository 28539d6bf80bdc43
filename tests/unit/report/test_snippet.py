import json
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from autofit.cli import app
from autofit.records.knobs import FitConfig
from autofit.records.machine import Device, Placement
from autofit.report import snippet
from autofit.storage import result_files
from tests.fakes import MACHINE, with_fields


def kwargs_in(output_format, record, folder):
    """What `autofit kwargs` prints."""
    result_files.save(record, folder / "result.json")
    done = CliRunner().invoke(
        app, ["kwargs", str(folder / "result.json"), "--format", output_format]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_autotune_has_its_name_in_python_and_its_number_elsewhere(record, tmp_path):
    knobs = {"batch_size": 64, "num_parallel_calls": -1, "prefetch": -1}
    call_source = replace(
        record.call_source, data_kwargs={"axis": -1}, validation_kwargs={}
    )
    names = {
        "batch_size": "batch_size",
        "workers": "num_parallel_calls",
        "max_queue_size": "prefetch",
    }
    description = replace(
        record.description, input_kind="tf.data", knobs=names, validation_knobs=names
    )
    changed = with_fields(
        record,
        config=FitConfig(64, -1, -1),
        data_kwargs=knobs,
        call_source=call_source,
        description=description,
    )
    code = snippet.render(changed)
    assert "import tensorflow as tf" in code.splitlines()
    assert (
        code.count("num_parallel_calls=tf.data.AUTOTUNE")
        == code.count("prefetch=tf.data.AUTOTUNE")
        == 2
    )
    expected = {"data_kwargs": knobs, "fit_kwargs": dict(changed.fit_kwargs)}
    assert json.loads(kwargs_in("json", changed, tmp_path)) == expected
    assert yaml.safe_load(kwargs_in("yaml", changed, tmp_path)) == expected
    assigned = {}
    exec(
        kwargs_in("python", changed, tmp_path)
        .replace("import tensorflow as tf", "")
        .replace("tf.data.AUTOTUNE", "-1"),
        assigned,
    )
    assert {key: assigned[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("call", "parts", "lines"),
    [
        ("fit", 2, ["x, y = data()", "model.fit(x, y, batch_size=64)"]),
        ("predict", 3, ["model.predict(x, batch_size=64)"]),
        ("evaluate", 3, ["model.evaluate("]),
    ],
)
def test_arrays_are_given_to_the_method_in_the_form_that_they_came_in(
    record, call, parts, lines
):
    call_source = replace(
        record.call_source, call=call, data="data", data_kwargs={}, validation=None
    )
    description = replace(
        record.description,
        input_kind="arrays",
        batch_parts=parts,
        knobs={"batch_size": "batch_size"},
    )
    changed = with_fields(
        record,
        call_source=call_source,
        description=description,
        data_kwargs={},
        fit_kwargs={"batch_size": 64},
    )
    written = snippet.render(changed).splitlines()
    assert set(lines) <= set(written)
    assert call == "fit" or not any("fit" in line for line in written)


def test_the_model_is_built_and_compiled_as_the_arguments_and_the_config_say(record):
    source = replace(
        record.call_source,
        dtype_policy="mixed_bfloat16",
        jit_compile=True,
        model="build_model(2)",
    )
    description = replace(record.description, model_takes_batch=True)
    changed = with_fields(
        record,
        call_source=source,
        description=description,
        config=replace(record.config, steps_per_execution=8),
    )
    code = snippet.render(changed)
    model = f"model = build_model(2, batch_size={record.config.batch_size})"
    assert (
        f"keras.mixed_precision.set_dtype_policy('mixed_bfloat16')\n{model}\n"
        "model.jit_compile = True\n" in code
    )
    assert "\nmodel.steps_per_execution = 8\n" in code
    kwargs = snippet.kwargs_of(changed.fastest)
    assert kwargs["compile_kwargs"] == {"steps_per_execution": 8}
    compile(code, "snippet", "exec")


@pytest.mark.parametrize(
    ("changes", "fit_kwargs", "lines"),
    [
        (
            {
                "data": "data",
                "data_form": "arrays",
                "validation": None,
                "fit_kwargs": {"epochs": 3},
            },
            {"epochs": 3, "steps_per_epoch": 5},
            ["model.fit(..., batch_size=64, steps_per_epoch=5)"],
        ),
        (
            {"data": "data", "data_form": "object", "validation": None},
            {},
            [
                "# data: the dataset that you gave to autofit",
                "data.batch_size = 64",
                "model.fit(..., batch_size=64)",
            ],
        ),
        (
            {
                "data": "Seq",
                "data_kwargs": {"rows": 9},
                "validation": "val",
                "validation_form": "arrays",
            },
            {},
            [
                "    Seq(..., rows=9, batch_size=64),",
                "    validation_data=...,",
                "    batch_size=64,",
            ],
        ),
    ],
)
def test_what_only_the_users_program_can_write_is_elided(
    record, changes, fit_kwargs, lines
):
    elided = [part for part in ("data", "validation") if changes.get(part, "Photos")]
    call_source = replace(
        record.call_source,
        elided=elided,
        settings=("keras.config.set_floatx('float64')",),
        **changes,
    )
    kwargs = {
        "data_kwargs": {"batch_size": 64},
        "fit_kwargs": {"batch_size": 64, **fit_kwargs},
    }
    code = snippet.render(with_fields(record, call_source=call_source, **kwargs))
    first, *rest = code.splitlines()
    assert first == '# in your program, where "..." stands for what it passes already:'
    assert set(lines) <= set(rest), code
    assert "float64" not in code
    compile(code, "snippet", "exec")


def test_settings_of_the_program_come_first_and_further_arguments_of_fit_are_passed_on(
    record,
):
    line = "keras.config.set_floatx('float64')"
    source = replace(
        record.call_source,
        settings=(line,),
        fit_expressions={"callbacks": "make_callbacks()"},
    )
    code = snippet.render(
        with_fields(
            record, call_source=source, fit_kwargs={"class_weight": {0: 1.0, 1: 5.0}}
        )
    )
    assert code.index(line) < code.index("model = ")
    assert all(
        argument in code
        for argument in ("class_weight={0: 1.0, 1: 5.0}", "callbacks=make_callbacks()")
    )


@pytest.mark.parametrize(
    ("call_source", "knobs", "code"),
    [
        (
            {"validation": "load_val", "validation_kwargs": {}},
            {},
            "validation_data=load_val(),",
        ),
        (
            {"validation_kwargs": {}},
            {"workers": "num_parallel_calls"},
            "num_parallel_calls=",
        ),
        (
            {"validation": "val", "validation_form": "object"},
            {"workers": "workers"},
            "val.workers = ",
        ),
    ],
)
def test_the_validation_is_called_with_what_it_takes(record, call_source, knobs, code):
    description = replace(record.description, validation_knobs=knobs)
    changed = with_fields(
        record,
        call_source=replace(record.call_source, **call_source),
        description=description,
    )
    assert code in snippet.render(changed)
    compile(snippet.render(changed), "snippet", "exec")


GPUS = tuple(Device(n, "A100", f"GPU-{n}", 2**36, 2**36) for n in range(3))


@pytest.mark.parametrize(
    ("placement", "backend", "lines"),
    [
        (
            Placement.on(GPUS[0], GPUS[2]),
            "tensorflow",
            [
                'os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-0,GPU-2"',
                "import tensorflow as tf",
                "with tf.distribute.MirroredStrategy().scope():",
                "    model = build_model(width=8)",
                "# batch 64 is global: 32 on each of 2 devices",
            ],
        ),
        (
            Placement(count=2),
            "jax",
            [
                "import keras",
                "keras.distribution.set_distribution(keras.distribution.DataParallel())",
                "model = build_model(width=8)",
            ],
        ),
    ],
)
def test_the_lines_to_paste_build_the_model_for_the_devices_of_the_tune(
    record, placement, backend, lines
):
    placed = {
        "device": placement.name,
        "placement": placement,
        "machine": replace(MACHINE, devices=GPUS),
    }
    call_source = replace(record.call_source, distribution="data_parallel")
    description = replace(record.description, versions={"backend": backend})
    code = snippet.render(
        with_fields(record, call_source=call_source, description=description, **placed)
    )
    compile(code, "snippet", "exec")
    written = code.splitlines()
    positions = [written.index(line) for line in lines]
    assert positions == sorted(positions)
    assert ("CUDA_VISIBLE_DEVICES" in code) is bool(placement.gpus)
