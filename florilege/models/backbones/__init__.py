"""Torch networks, built by name and optionally initialised from existing weights."""

from florilege.models.backbones.known_networks import architecture as architecture
from florilege.models.backbones.known_networks import available as available
from florilege.models.backbones.networks import Network as Network
from florilege.models.backbones.networks import build as build
