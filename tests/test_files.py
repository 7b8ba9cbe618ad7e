"""Files that users give: one reader for JSON and TOML, which refuses what could block,
fill memory or be misread.
"""

import os
import sys

import pytest

from tests.internals import content, fields


def refused(path, text, most=2**16):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=path.name) as caught:
        fields(path, most)
    message = str(caught.value)
    assert message.startswith(repr(str(path)))
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        ("[1]", "must hold an object"),
        ('{"a": ' + "[" * 9999, "nested too deeply"),
        ('{"a": ' + "[" * 9999 + "]" * 9999 + "}", "nested too deeply"),
        ('{"a": {"b": 1, "b": 1}}', "it has the field 'b' twice"),
        ('{"a": ' + "1" * 9999 + "}", "9999 digits"),
        (" " * 2**16 + "{}", "has more than 65,536 bytes"),
    ],
)
def test_json_that_is_refused(text, said, tmp_path):
    if "9999 digits" in said and sys.get_int_max_str_digits() == 0:
        pytest.skip("integers of any length are allowed here")
    assert said in refused(tmp_path / "a.json", text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = ", "is not valid TOML"),
        ("a = 1\na = 2", "is not valid TOML"),
        ("a = " + "[" * 9999, "nested too deeply"),
    ],
)
def test_toml_that_is_refused(text, said, tmp_path):
    assert said in refused(tmp_path / "a.toml", text)


def test_json_and_toml_files_are_parsed(tmp_path):
    (tmp_path / "a.json").write_text(
        '{"a": [1, "\\ud83d\\ude00", ' + "9" * 300 + '], "b": 1e-5}'
    )
    assert fields(tmp_path / "a.json") == {"a": [1, "😀", int("9" * 300)], "b": 1e-5}
    (tmp_path / "a.toml").write_text("# 0.5 of 1.0 … a.b.c\n[query.lr]\nwidth = -0.5\n")
    assert fields(tmp_path / "a.toml") == {"query": {"lr": {"width": -0.5}}}
    with pytest.raises(FileNotFoundError):
        fields(tmp_path / "none.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(
            ValueError, match="must be a regular file, not a folder, a device or a pipe"
        ):
            content(path)
