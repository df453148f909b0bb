"""The flora: pictures of invented plants whose true P(species | picture) is known exactly."""

from florilege.data.flora.flora import Flora as Flora
from florilege.data.flora.flora import list_flora as list_flora
