"""Torch networks, built by name and optionally initialised from existing weights."""

from florilege.models.backbones.networks import Network as Network
from florilege.models.backbones.networks import available as available
from florilege.models.backbones.networks import build as build
from florilege.models.backbones.networks import normalises as normalises
from florilege.models.backbones.networks import own_preprocess as own_preprocess
from florilege.models.backbones.networks import side_taken as side_taken
