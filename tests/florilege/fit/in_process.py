"""The steps of `florilege fit` in this process, where torch is loaded once for all tests."""

import os
from collections.abc import Container

import pytest

from florilege import cli
from florilege.command_line import fit_cli
from florilege.errors import FlorilegeError
from florilege.run_bundle import Words, run_step
from florilege.terminal import STEP
from tests.commands import call


class Steps:
    """Runs the commands; keeps their words, and all that they wrote.

    Verbs ``apart`` run in a process of their own, as for a user.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, apart: Container[str] = ()) -> None:
        self.lines, self.output, self.apart = list[list[str]](), "", apart
        monkeypatch.setattr(fit_cli, "run_step", self)

    def __call__(self, words: Words) -> None:
        self.lines.append([str(word) for word in words])
        if words[0] in self.apart:
            run_step(words)
            return
        os.environ[STEP] = "1"
        try:
            result = call(cli.app, *words)
        finally:
            del os.environ[STEP]
        self.output += result.output
        if result.exit_code:
            raise FlorilegeError(result.output)
