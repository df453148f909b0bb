"""Decode photos into the pixels that a network sees, for all code that reads photos."""

from florilege.models.images.decoding import DECODER_VERSION as DECODER_VERSION
from florilege.models.images.decoding import MAX_PIXELS as MAX_PIXELS
from florilege.models.images.decoding import Preprocess as Preprocess
from florilege.models.images.decoding import decode as decode
from florilege.models.images.decoding import load as load
from florilege.models.images.decoding import plain_jpeg as plain_jpeg
from florilege.models.images.headers import MAX_BYTES as MAX_BYTES
from florilege.models.images.headers import Header as Header
from florilege.models.images.headers import read_header as read_header
from florilege.models.images.sniff import ACCEPTED as ACCEPTED
from florilege.models.images.sniff import DamagedImage as DamagedImage
from florilege.models.images.sniff import ImageError as ImageError
from florilege.models.images.sniff import OversizedImage as OversizedImage
from florilege.models.images.sniff import UnsupportedImage as UnsupportedImage
