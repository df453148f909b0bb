"""Scientific names as botanists write them."""

import re

# Genus, hybrid sign, epithet, and the epithet of a subspecies, variety or form; then the authors.
_BINOMIAL = re.compile(
    r"[A-Z][\w-]+(?: [x\u00d7])?(?: \u00d7?[a-z][\w-]+)(?: (?:subsp\.|var\.|f\.) [a-z][\w-]+)?"
)


def without_author(name: str) -> str:
    """The name of a species without its authors; unchanged where it does not look like one.

    Example:
        >>> without_author("Lactuca virosa L."), without_author("Mentha × piperita L.")
        ('Lactuca virosa', 'Mentha × piperita')
    """
    match = _BINOMIAL.match(name)
    return match.group() if match else name
