"""Progress goes to stderr, and only where someone watches."""

import pytest

from models.progress import progress


def test_nothing_is_printed_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(3, "counting") as advance:
        for _ in range(3):
            advance()
        advance(0, note="done")
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_steps_and_note_on_stderr(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    with progress(4, "counting") as advance:
        advance(3)
        advance(note="loss 0.5")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "counting" in captured.err
    assert "4/4" in captured.err
    assert "loss 0.5" in captured.err


def test_the_bar_is_put_away_when_the_work_fails() -> None:
    with pytest.raises(RuntimeError, match="broken"), progress(2, "counting"):
        raise RuntimeError("broken")
    with progress(2, "again") as advance:
        advance(2)


def test_of_several_processes_the_first_alone_shows_a_bar(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with progress(1, f"work of {rank}") as advance:
            advance()
    shown = capfd.readouterr().err
    assert "work of 0" in shown
    assert "work of 1" not in shown
