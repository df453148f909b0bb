import json
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import UsageError
from florilege.models.imported.description import Description, read_description


def _read(folder: Path, content: Any) -> Description:
    path = folder / "preprocess.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_description(path)


def test_without_a_file_nothing_is_said() -> None:
    result = read_description(None)
    assert result == Description()
    assert (result.channels, result.resize, result.crop) == ("rgb", "bilinear", 1.0)


def test_every_key_of_the_file_is_read(tmp_path: Path) -> None:
    content = {
        **{"layout": "nhwc", "type": "float32", "channels": "bgr", "size": 192},
        **{"resize": "bicubic", "crop": 0.875, "scale": 1, "mean": [104, 117, 123]},
        **{"std": [1, 1, 1.5], "output": "prob", "kind": "probabilities"},
    }
    result = _read(tmp_path, content)
    assert result.model_dump(mode="json") == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"sizes": 2}, "unknown key 'sizes'; keys are layout, type, channels, size"),
        ({"resize": 256}, "got 256; use crop for a resize before the crop: 224 of 256 pixels"),
        ({"mean": [1, 2]}, "mean"),
        ({"std": [1, 0, 1]}, "std.1: input should be greater than 0, got 0"),
        ({"crop": 1.5}, "crop: input should be less than or equal to 1"),
        ({"size": 0}, "size"),
        ("[]", "input should be an object"),
        ("{", "JSON"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "preprocess.json") in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_description(tmp_path / "none.json")
