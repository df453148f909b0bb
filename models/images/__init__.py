"""From the bytes of a photo to the pixels a network sees, for all code that looks at photos."""

from models.images.decoding import MAX_PIXELS as MAX_PIXELS
from models.images.decoding import Preprocess as Preprocess
from models.images.decoding import decode as decode
from models.images.decoding import load as load
from models.images.errors import DamagedImage as DamagedImage
from models.images.errors import ImageError as ImageError
from models.images.errors import ImageTooLarge as ImageTooLarge
from models.images.errors import UnsupportedImage as UnsupportedImage
from models.images.headers import MAX_BYTES as MAX_BYTES
from models.images.headers import Header as Header
from models.images.headers import read_header as read_header
from models.images.plain import plain_jpeg as plain_jpeg
from models.images.sniff import ACCEPTED as ACCEPTED
