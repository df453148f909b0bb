"""Torch networks, built by name and optionally initialised from existing weights."""

from florilege.models.backbones.architecture import PRETRAINED as PRETRAINED
from florilege.models.backbones.known_networks import architecture as architecture
from florilege.models.backbones.known_networks import available as available
from florilege.models.backbones.networks import Network as Network
from florilege.models.backbones.networks import build as build
from florilege.models.backbones.networks import depths as depths
from florilege.models.backbones.networks import not_decayed as not_decayed
from florilege.models.backbones.weights import RECORD as RECORD
from florilege.models.backbones.weights import Provenance as Provenance
from florilege.models.backbones.weights import Weights as Weights
from florilege.models.backbones.weights import load_into as load_into
from florilege.models.backbones.weights import open_weights as open_weights
from florilege.models.backbones.weights import read_weights as read_weights
from florilege.models.backbones.weights import warm_start as warm_start
