"""What MkDocs does in addition to rendering docs/: it makes the reference from the code and pages of notebooks, shows
files of the repository that pages link to, and gives headings the anchors that GitHub gives them.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import api
import commands
import formulas
import keys
import notebooks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)]*)?(?=\))")
PROJECT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
"""Pages that are files at the root of the repository."""
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
"""The head of a page that shows a file: the search finds pages about a thing, not the files they link to."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".service": "ini"}


def on_config(config: MkDocsConfig) -> None:
    """Anchors as on GitHub, formulas, and all pages of docs/examples."""
    config.mdx_configs["toc"]["slugify"] = anchor
    fence = {"name": "math", "class": "math", "format": formulas.fence}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    for section in config.nav:
        if section == {"Examples": "examples/"}:
            found = sorted((ROOT / "docs" / "examples").glob("*.md"), key=lambda path: (path.name != "README.md", path))
            section["Examples"] = [path.relative_to(ROOT / "docs").as_posix() for path in found]


def anchor(heading: str, _: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/."""
    made = {
        "reference/keys.md": keys.page(),
        "reference/commands.md": commands.page(),
        **api.pages(),
        **notebooks.pages(),
    }
    made |= {page: (ROOT / source).read_text("utf-8") for page, source in PROJECT.items()}
    linked = {path for file in files.documentation_pages() for path in _outside(file.src_uri, file.content_string)}
    linked |= {file.relative_to(ROOT).as_posix() for path in linked for file in _files(ROOT / path)}
    made |= {
        f"source/{path}.md": _shown(path)
        for path in linked - {*PROJECT.values(), "README.md"}
        if (ROOT / path).exists()
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))


def _outside(page: str, text: str) -> set[str]:
    """The files outside docs/ that a page links to, from the root of the repository."""
    here = posixpath.join("docs", posixpath.dirname(page))
    targets = {posixpath.normpath(posixpath.join(here, link)) for link, _ in LINK.findall(text)}
    return {target for target in targets if not target.startswith("docs/")}


def _files(folder: Path) -> list[Path]:
    """The files in a folder of the repository; none where it is a file."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _shown(path: str) -> str:
    """A file of the repository as a page, or the files of a folder."""
    if (ROOT / path).is_dir():
        names = [file.relative_to(ROOT / path).as_posix() for file in _files(ROOT / path)]
        lines = [f"# {path}", "", *(f"- [{name}]({posixpath.basename(path)}/{name}.md)" for name in names), ""]
        return UNSEARCHED + "\n".join(lines)
    text = (ROOT / path).read_text("utf-8")
    return f"{UNSEARCHED}# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to the site's own pages."""
    source = PROJECT.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return LINK.sub(lambda found: _target(source, page.file.src_uri, found), markdown)


def _target(source: str, page: str, found: re.Match[str]) -> str:
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
    names = {file: name for name, file in PROJECT.items()} | {"README.md": "index.md"}
    if there in names:
        there = names[there]
    elif there.startswith("docs/"):
        there = there.removeprefix("docs/")
    elif (ROOT / there).exists() and not source.startswith("docs/source/"):
        there = f"source/{there}.md"
    else:
        return found[0]
    return posixpath.relpath(there, posixpath.dirname(page) or ".") + (found[2] or "")
