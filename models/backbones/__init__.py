"""Networks in torch: built by name, and started from existing weights."""

from models.backbones.networks import Network as Network
from models.backbones.networks import available as available
from models.backbones.networks import build as build
from models.backbones.networks import own_preprocess as own_preprocess
from models.backbones.networks import side_taken as side_taken
