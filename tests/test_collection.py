"""What worker processes import before they collect."""

from types import SimpleNamespace

from tests.conftest import modules_to_collect


def test_modules_to_collect_are_those_of_folders_and_files_but_ignored_ones(tmp_path):
    for name in ("a/test_one.py", "a/helper.py", "a/left/test_two.py", "test_three.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = tmp_path / "tests"
    config = SimpleNamespace(
        args=[str(folder / "a"), f"{folder / 'test_three.py'}::test_it[1::2]"],
        rootpath=tmp_path,
        getoption={"ignore": [str(folder / "a" / "left")]}.get,
    )
    assert modules_to_collect(config) == ["tests.a.test_one", "tests.test_three"]
