"""Hooks of the documentation site: pages from the repository's root, and an API page for each module."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
API = "api"


def api_modules() -> list[str]:
    """Return the dotted names of the package's modules that have a docstring worth a page."""
    package = ROOT / "albert_cli"
    files = [path for path in sorted(package.rglob("*.py")) if path.name not in ("__main__.py", "__init__.py")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API pages to the navigation, one section for each package."""
    sections: dict[str, list[dict[str, str]]] = {}
    for module in api_modules():
        _, *packages, name = module.split(".")
        sections.setdefault(".".join(packages) or "albert_cli", []).append({name: f"{API}/{module}.md"})
    assert config.nav is not None
    config.nav.append({"API": [{section: pages} for section, pages in sections.items()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root and the API pages to the site."""
    for source, target in ROOT_PAGES.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=_rewrite_links(content, "docs/", "")))
    for module in api_modules():
        files.append(File.generated(config, f"{API}/{module}.md", content=f"::: {module}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to the repository's root lead to the site's pages."""
    for source, target in ROOT_PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*){re.escape(source)}", rf"](\1{target}", markdown)
    depth = page.file.src_uri.count("/")
    excess = "../" * (depth + 1)
    return markdown.replace(f"]({excess}", f"]({'../' * depth}")


def _rewrite_links(markdown: str, prefix: str, replacement: str) -> str:
    """Replace the prefix of relative link targets."""
    return markdown.replace(f"]({prefix}", f"]({replacement}")
