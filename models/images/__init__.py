"""From the bytes of a photo to the pixels a network sees, for everything that looks at photos."""

from models.images.decoding import Preprocess as Preprocess
from models.images.decoding import decode as decode
from models.images.decoding import load as load
