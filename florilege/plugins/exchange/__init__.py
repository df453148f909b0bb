"""Databases of observations and camera traps: ``predict --format dwc|camtrap``, which they read,
and ``data import-occurrences``, which reads theirs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from florilege.hooks import Command, OutputFormat, hookimpl

if TYPE_CHECKING:
    from florilege.hooks import Convert
    from florilege.server.predict.batch_settings import BatchSettings
    from florilege.server.predict.prediction import Observation


@hookimpl
def commands() -> Mapping[str, Command]:
    """``florilege data import-occurrences``."""
    archive = Command(
        module="florilege.plugins.exchange.occurrence_archive",
        about="Count the records of a Darwin Core archive.",
    )
    return {"data import-occurrences": archive}


@hookimpl
def output_formats() -> Mapping[str, OutputFormat]:
    """Tables of Darwin Core, and packages of Camtrap DP."""
    camtrap = OutputFormat(writer=_camtrap_writer, check=_check_camtrap, is_binary=True)
    return {"dwc": OutputFormat(writer=_darwin_core_writer), "camtrap": camtrap}


def _darwin_core_writer(_: "BatchSettings", __: "Sequence[Observation]") -> "Convert":
    from florilege.plugins.exchange.exchange import write_darwin_core

    return write_darwin_core


def _camtrap_writer(batch: "BatchSettings", observations: "Sequence[Observation]") -> "Convert":
    from florilege.plugins.exchange.camtrap import write_camtrap
    from florilege.plugins.exchange.deployments import Deployments

    assert batch.deployments is not None, "checked when the settings were made"
    deployments = Deployments.read(batch.deployments, observations)
    return partial(write_camtrap, deployments=deployments)


def _check_camtrap(batch: "BatchSettings") -> None:
    if (batch.form == "camtrap") != (batch.deployments is not None):
        raise ValueError(
            "--format camtrap and --deployments go together: photos do not tell where and when "
            "a camera stood, which Camtrap DP requires"
        )
    if batch.form == "camtrap" and (batch.tiles or batch.group_by):
        raise ValueError("--format camtrap takes each photo alone: no --tiles, no --group-by")
