import json
import re
import resource
from dataclasses import asdict, fields, replace

import pytest

from autofit.errors import UsageError
from autofit.report.html import page
from autofit.storage import result_files
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request, with_fields


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    request = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB)
    return collect(tune, request, FakeLauncher(cliff=64))[1]


def test_the_file_is_the_record_and_comes_back_whole(record, tmp_path):
    result_files.save(record, tmp_path / "result.json")
    saved = json.loads((tmp_path / "result.json").read_text())
    assert list(saved) == [*(field.name for field in fields(record)), "bottleneck"]
    assert saved["fastest"]["config"] == asdict(record.config)
    assert [trial["measurement"]["outcome"] for trial in saved["trials"]] == [
        t.measurement.outcome for t in record.trials
    ]
    assert result_files.load(tmp_path / "result.json") == record
    with pytest.raises(UsageError, match="No such file"):
        result_files.save(record, tmp_path / "nowhere" / "result.json")


def test_a_file_is_read_and_its_text_is_shown_within_bounds(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"version": "x" * 10_000}))
    with pytest.raises(UsageError, match=r"has version x*, and") as raised:
        result_files.load(file)
    assert len(str(raised.value)) < 1000
    monkeypatch.setattr(result_files, "_MOST_BYTES", 9_000)
    with pytest.raises(UsageError, match="it is larger than"):
        result_files.load(file)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ()),
        ("[]", ("autofit",)),
        ('{"version": 99}', ("99", "4")),
        ('{"version": 4}', ()),
    ],
)
def test_a_file_that_is_no_result_is_a_usage_error(tmp_path, text, facts):
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(str(file))) as caught:
        result_files.load(file)
    assert all(fact in str(caught.value) for fact in facts)


def test_kwargs_that_json_does_not_know_do_not_lose_the_result_and_class_numbers_are_numbers_again(
    record, tmp_path
):
    call_source = replace(
        record.call_source, data_kwargs={"augment": len, "scale": {1, 2}}
    )
    weighted = with_fields(
        record, call_source=call_source, fit_kwargs={"class_weight": {0: 1.0, 1: 2.5}}
    )
    result_files.save(weighted, tmp_path / "result.json")
    loaded = result_files.load(tmp_path / "result.json")
    assert loaded.call_source.data_kwargs["augment"] == "<built-in function len>"
    assert loaded.fit_kwargs == weighted.fit_kwargs


@pytest.mark.parametrize("save", [result_files.save, page.save])
def test_a_full_disk_leaves_the_old_file_whole(record, tmp_path, save):
    path = tmp_path / "old"
    path.write_text("of yesterday")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1000, limits[1])
    )  # Python ignores SIGXFSZ
    try:
        with pytest.raises(
            UsageError, match=r"old cannot be written \(File too large\)"
        ):
            save(record, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [path]
