"""The folder of a run: nothing that is not of an earlier run is overwritten or
removed.
"""

import json
import os

import pytest

from tests.internals import Folder

OPTIONS = {
    "command": "netsor reproduce 1b",
    "options": {"figures": ["1b"]},
    "seed": 0,
    "versions": {},
}
FILES = {"1b.csv": b"one", "report.html": b"two"}


def folder_of(path):
    return Folder(path, "netsor reproduce", side_by_side=["figures"])


def contents(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.suffix != ".lock"
    }


def put(folder, files=FILES, **changed):
    made = folder_of(folder)
    made.prepare(files)
    made.put(files, {**OPTIONS, **changed})


def test_files_of_earlier_runs_are_replaced(tmp_path):
    put(tmp_path)
    put(tmp_path, {"1b.csv": b"three", "report.html": b"four"})
    found = contents(tmp_path)
    assert found["1b.csv"] == b"three"
    assert json.loads(found["manifest.json"])["files"].keys() == FILES.keys()


@pytest.mark.parametrize("name", ["1b.csv", "report.html", "manifest.json"])
@pytest.mark.parametrize(
    "text",
    ["mine", "[]", "null", "{}", '{"files": []}', '{"files": {"1b.csv": 3}}', ""],
)
@pytest.mark.parametrize("after", [False, True])
def test_prepare_rejects_foreign_or_changed_files(name, text, after, tmp_path):
    if after:  # of an earlier run, and changed since
        put(tmp_path)
    (tmp_path / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"out=.* holds a .* that is not of an earlier run, or was changed since",
    ):
        folder_of(tmp_path).prepare(FILES)
    assert contents(tmp_path) == before


def test_manifest_that_names_files_elsewhere_is_not_ours(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    wrong = {**OPTIONS, "files": {"../mine": "x"}, "replaced": {}}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=r"holds a manifest\.json"):
        folder_of(tmp_path / "out").prepare(FILES)


def test_file_that_appears_during_the_work_is_refused_at_the_end(tmp_path):
    folder = folder_of(tmp_path)
    folder.prepare(FILES)
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"holds a report\.html"):
        folder.put(FILES, dict(OPTIONS))
    assert contents(tmp_path) == {"report.html": b"mine"}


def test_folders_and_links_in_the_place_of_files_are_refused(tmp_path):
    (tmp_path / "a" / "report.html").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.html").symlink_to("nowhere")
    for name in "ab":
        with pytest.raises(ValueError, match=r"holds a report\.html"):
            folder_of(tmp_path / name).prepare(FILES)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["report.html", "manifest.json"])
def test_pipe_in_the_place_of_a_file_does_not_block(name, tmp_path):
    put(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"holds a .* that is not of an earlier run"):
        folder_of(tmp_path).prepare(FILES)


def test_manifest_that_could_be_misread_is_not_ours(tmp_path):
    put(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(
        text.replace('"seed":', '"seed": 1, "seed":')
    )
    with pytest.raises(ValueError, match=r"holds a manifest\.json"):
        folder_of(tmp_path).prepare(FILES)


def test_other_options_remove_what_was_not_changed(tmp_path):
    put(tmp_path, {**FILES, "2a.csv": b"x", "2a.png": b"y"})
    (tmp_path / "2a.png").write_text("changed")
    put(tmp_path)  # the same options: all stay
    assert contents(tmp_path).keys() == {
        "1b.csv",
        "2a.csv",
        "2a.png",
        "report.html",
        "manifest.json",
    }
    put(tmp_path, seed=1)
    assert contents(tmp_path).keys() == {
        "1b.csv",
        "2a.png",
        "report.html",
        "manifest.json",
    }


@pytest.mark.parametrize("writes", range(4))
def test_run_that_is_ended_while_it_writes_is_known_to_the_next(
    writes, tmp_path, monkeypatch
):
    from tests.internals import _output_dir

    put(tmp_path)
    left = iter(range(writes))
    write = _output_dir.write

    def ended(path, content):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(path, content)

    new = {"1b.csv": b"three", "report.html": b"four"}
    with monkeypatch.context() as patch:
        patch.setattr(_output_dir, "write", ended)
        if writes < 3:
            with pytest.raises(KeyboardInterrupt):
                put(tmp_path, new)
    put(tmp_path, new)
    assert {name: contents(tmp_path)[name] for name in new} == new


def test_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(OSError, match="file"):
            folder_of(out).prepare(FILES)
    (tmp_path / "parts").write_text("mine")
    with pytest.raises(FileExistsError):
        folder_of(tmp_path).prepare(FILES)


def test_files_of_another_study_are_not_overwritten(tmp_path):
    put(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(
        ValueError, match=r"holds a manifest\.json that is not of an earlier run"
    ):
        Folder(tmp_path, "netsor audit").prepare(["layers.csv"])
    assert contents(tmp_path) == before
