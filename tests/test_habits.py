"""The files that keep the repository in order agree with each other."""

import ast
import os
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import yaml

import tdcd
from tdcd.runtime.messages.wire import FORMAT, PROTOCOL

ROOT = Path(__file__).parents[1]
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_hooks_have_the_versions_that_are_pinned():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    versions = {repo["repo"].split("/")[-1]: repo.get("rev") for repo in hooks["repos"]}
    assert versions == {"ruff-pre-commit": f"v{PINNED['ruff']}", "local": None}
    local = {hook["entry"] for repo in hooks["repos"] if repo["repo"] == "local" for hook in repo["hooks"]}
    assert local == {".venv/bin/mypy", ".venv/bin/lint-imports", "make quick"}  # installed with the constraints


def test_the_workflow_runs_what_ci_runs_with_few_rights():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    jobs = WORKFLOW["jobs"].values()
    assert all(job["timeout-minutes"] <= 60 for job in jobs)
    steps = [step for job in jobs for step in job["steps"]]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert ".ci/run" in [step.get("run") for step in steps]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    assert not re.search(r"secrets\.|pull_request_target", (ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_the_oldest_python_is_tried():
    versions = WORKFLOW["jobs"]["whole"]["strategy"]["matrix"]["python-version"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert versions == sorted(versions, key=lambda version: [*map(int, version.split("."))])


def test_every_target_of_the_makefile_is_explained():
    makefile = (ROOT / "Makefile").read_text()
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    explained = {*re.findall(r"^# make (\w+) ", makefile, re.MULTILINE)}
    explained |= {*re.findall(r"^make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)}
    assert {*targets.split()} - explained == set()


def test_the_version_and_the_numbers_of_formats_are_the_same_everywhere():
    version = PROJECT["version"]
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert re.findall(r"^\| (?:version|`PROTOCOL`|`FORMAT`) \| (\S+) ", page, re.MULTILINE) == [
        version,
        str(PROTOCOL),
        str(FORMAT),
    ]
    # The numbers of the code are those of this version, or of the next one.
    (current,) = re.findall(rf"^\| (.*) \| {PROTOCOL} \| {FORMAT} \|", page, re.MULTILINE)
    assert (
        current == version
        or f"## {current.replace(', not released', ', unreleased')}\n" in (ROOT / "CHANGELOG.md").read_text()
    )
    assert tdcd.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"  version = {{{version}}}" in (ROOT / "docs" / "reproducing.md").read_text()
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "tdcd" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    values = (ROOT / "deploy" / "helm" / "tdcd" / "values.yaml").read_text()
    assert re.findall(r"tdcd-(?:hub|client):(\S+)", values) == [version, version]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+) - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)[1] == version
    minor = version.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()


PACKAGE = ROOT / "src" / "tdcd"


@cache
def modules():
    """The trees of all modules, by path."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


NO_NOUNS = {"one", "both", "found", "several", "how"}


def test_variables_are_nouns_of_the_field():
    bad = []
    for path, tree in modules().items():
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(tree):
            kinds = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.Attribute: "attr"}
            name = kinds.get(type(node))
            is_use = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
            if name and not is_use and getattr(node, name).strip("_") in NO_NOUNS:
                bad.append(f"{file}:{node.lineno}: {getattr(node, name)}")
    assert bad == []


TYPE_NAME = re.compile(r"_?[A-Z][A-Za-z]*[a-z][A-Za-z]*")


def test_a_name_means_one_class_or_one_type():
    meanings = defaultdict(set)
    for path, tree in modules().items():
        for node in tree.body:
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.ClassDef):
                meanings[node.name].add(f"a class in {path}")
            elif TYPE_NAME.fullmatch(name):
                # A short name for the same type may stand in several modules.
                meanings[name].add(ast.unparse(node.value))
    assert {"Variant", "Layout"} <= meanings.keys()
    assert {name: several for name, several in meanings.items() if len(several) > 1} == {}


SHORT = 60
ONE_FILE_EACH = {
    "core/losses/squared.py",
    "core/family/momentum.py",
    "core/family/participation.py",
    "tracking/tensorboard_tracker.py",
}
"""A loss, a member of the family and a tracker have a file of their own, however short."""


def test_what_one_module_needs_is_in_it_unless_it_is_long():
    importers = defaultdict(set)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    importers[name].add(path)
    short = set()
    for path in modules():
        file = path.relative_to(PACKAGE).as_posix()
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines <= SHORT and len(importers["tdcd." + file.removesuffix(".py").replace("/", ".")]) == 1:
            short.add(file)
    assert short - ONE_FILE_EACH == set()


AVOIDED = re.compile(r"\b(nobody|somebody|told|tells?|heard|hears|said|goes on|beside)\b", re.IGNORECASE)
PLAIN = re.compile(r"`tell`|tell\(|t(ell|old) apart")
"""What has such a word and is meant: names of methods, and to see a difference."""


def test_pages_and_messages_are_in_plain_words():
    texts = [*(ROOT / "src" / "tdcd").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts += [*(ROOT / "docs").rglob("*.py"), *(ROOT / "docs").rglob("*.svg"), *(ROOT / "examples").rglob("*.*")]
    texts = [path for path in texts if path.suffix in (".md", ".py", ".svg", ".toml")]
    bad = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = AVOIDED.findall(PLAIN.sub("", line))
            if words:
                bad.append(f"{path.relative_to(ROOT)}:{number}: {', '.join(words)}")
    assert len(texts) > 300
    assert bad == []


def test_the_changelog_says_a_thing_once():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sentences = [" ".join(sentence.split()) for sentence in re.split(r"\.\s+|^- ", text, flags=re.MULTILINE)]
    assert len(sentences) > 300
    long = Counter(sentence for sentence in sentences if len(sentence.split()) > 8)
    assert [sentence for sentence, count in long.items() if count > 1] == []
