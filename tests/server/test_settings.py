"""Settings: what is refused; the generated page of commands guards their defaults."""

from pathlib import Path

import pytest

from florilege.server.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "tpu"),
        ("threads", 0),
        ("workers", 0),
        ("workers", "-1"),
        ("workers", "many"),
        ("workers", 1.5),
        ("queue_limit", 0),
        ("max_body_bytes", 0),
        ("max_pixels", -1),
        ("max_images", 0),
        ("max_held_bytes", 0),
        ("max_decoding_pixels", 0),
        ("score_log_max_bytes", 0),
        ("upload_deadline_s", 0.0),
        ("queue_timeout_s", float("nan")),
        ("drain_s", float("inf")),
        ("drain_notice_s", -0.1),
        ("feedback_max_bytes", 0),
        ("feedback_rate", "often"),
        ("feedback_rate", "0/hour"),
        ("feedback_rate", "9/minute;99/day"),
        ("feedback_licence", "CC BY 4.0"),
        ("feedback_photos", True),  # without a store
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        Settings(bundle=Path("b"), **{name: value})  # type: ignore[arg-type]  # on purpose
    assert str(refusal.value).count(", got") <= 1


@pytest.mark.parametrize(("text", "workers"), [("3", 3), ("auto", "auto"), (1, 1)])
def test_workers_are_a_number_or_auto(text: object, workers: object) -> None:
    assert Settings(bundle=Path("b"), workers=text).workers == workers  # type: ignore[arg-type]  # a flag


def test_watch_state_without_watch_is_refused() -> None:
    with pytest.raises(ValueError, match="watch_state needs watch"):
        Settings(bundle=Path("b"), watch=False, watch_state=Path("s"))
