"""The files that keep the repository in order agree with each other."""

import ast
import os
import re
import tomllib
from collections import Counter
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


NO_NOUNS = {"one", "both", "found", "several", "how"}
OPEN = (
    "core/certificate.py",
    "estimators/",
    "runtime/compute/hub_compute.py",
    "runtime/compute/local_steps.py",
    "runtime/compute/sample_index.py",
    "runtime/machine/client.py",
    "runtime/machine/handshake.py",
    "runtime/machine/hub.py",
    "runtime/machine/parts.py",
    "runtime/machine/rounds.py",
)
"""Where variables still have such names; what is taken off this list stays off."""


def test_variables_are_nouns_of_the_field():
    package, bad = ROOT / "src" / "tdcd", []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            name = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name"}.get(type(node))
            is_use = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            if name and not is_use and getattr(node, name) in NO_NOUNS and not file.startswith(OPEN):
                bad.append(f"{file}:{node.lineno}: {getattr(node, name)}")
    assert bad == []


def test_a_name_means_one_class():
    places = Counter(
        node.name
        for path in (ROOT / "src" / "tdcd").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in places.items() if count > 1] == []
