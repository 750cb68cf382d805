"""Files of one JSON object per line."""

import math

import pytest

from hvd_nmt.common import jsonl


def write(path, *lines):
    file = jsonl.JsonlFile(path)
    for line in lines:
        file.append(line)
    file.close()


def test_every_digit_survives_and_lines_are_strict_json_even_with_nan(tmp_path):
    values = {"loss": 0.1 + 0.2, "tiny": 5e-324, "big": 1.7976931348623157e308}
    values["text"] = "a\nü\u2028"
    half_a_character = {"name": "\udcff"}  # which must not stop a run
    path = tmp_path / "new" / "a.jsonl"
    write(path, values, half_a_character, {"a": math.nan, "b": [math.inf, {"c": -math.inf}]})
    strict = {"a": "nan", "b": ["inf", {"c": "-inf"}]}
    assert list(jsonl.read(path)) == [values, half_a_character, strict]
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b"\0" * 9, b"x" * 200_000])
@pytest.mark.parametrize("before", [[{"step": 1}, {"step": 2}], []])
def test_a_torn_last_line_is_skipped_and_cut_off_by_the_next_writer(tmp_path, before, torn):
    path = tmp_path / "a.jsonl"
    write(path, *before)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert list(jsonl.read(path)) == before
    write(path, {"step": 3})
    assert path.read_bytes() == whole + b'{"step":3}\n'


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"[1, 2]\n", b"\xff\xfe\n", b"[" * 99_999 + b"\n"])
def test_a_line_that_is_no_json_is_skipped_and_counted(tmp_path, damage):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'{"step": 2}\n')
    problems: list[str] = []
    assert list(jsonl.read(path, problems)) == [{"step": 1}, {"step": 2}]
    assert problems == [f"{path}: 1 line skipped, not JSON."]


def test_steps_are_dropped_and_other_lines_stay_to_the_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":  1}\n{"step": 2}\n{"note": "as it is" }\nno JSON\n{"torn')
    jsonl.drop_steps(path, after=1)
    assert path.read_bytes() == b'{"step":  1}\n{"note": "as it is" }\nno JSON\n'
    assert list(tmp_path.iterdir()) == [path]
