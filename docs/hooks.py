"""What MkDocs cannot see by itself: pages at the root of the repository, and links to code."""

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

ROOT = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site, and the files at the root that they show."""
ICON = "florilege/server/web/icon.svg"
"""The mark of the page, the repository and this site, which shows it as ``images/icon.svg``."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie at the root of the repository, and the mark."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for page, name in ROOT.items():
        text = (root / name).read_text("utf-8").replace(ICON, "images/icon.svg")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "images/icon.svg", content=(root / ICON).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead each link to a page of the site; one to a file of code becomes its text."""
    folder = "" if page.file.src_uri in ROOT else "docs"
    shown = {name: page for page, name in ROOT.items()}

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        place = normpath(f"{dirname(f'{folder}/{page.file.src_uri}')}/{target}").lstrip("/")
        there = shown.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(there) is None:
            return text.lstrip("[") if text.startswith("[`") else f"{text.lstrip('[')} (`{place}`)"
        up = "../" * page.file.src_uri.count("/")
        return f"{text}]({up}{there}{anchor or ''})"

    return re.sub(r"(!?\[[^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)", link, markdown)
