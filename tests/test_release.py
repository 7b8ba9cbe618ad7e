"""What a release needs besides the code: one version everywhere, files that a forge can
read, targets that exist.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import netsor

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "conda" / "meta.yaml").read_text()
PAPER = (ROOT / "paper" / "paper.md").read_text()


def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def codemeta():
    return json.loads((ROOT / "codemeta.json").read_text())


def test_version_and_date_agree_everywhere():
    versions = {
        "CITATION.cff": str(citation()["version"]),
        "codemeta.json": codemeta()["version"],
        "conda": re.search(r'set version = "(.*?)"', RECIPE)[1],
        "changelog": re.findall(
            r"^## (\d\S*) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
        )[0],
    }
    assert versions == dict.fromkeys(versions, netsor.__version__)
    dates = re.findall(
        r"^## \d\S* \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert {str(citation()["date-released"]), codemeta()["datePublished"]} == {dates[0]}


def test_readme_shows_the_citation_that_the_package_prints():
    assert netsor.__citation__ in (ROOT / "README.md").read_text()
    assert f"year = {{{citation()['date-released'].year}}}" in netsor.__citation__


def test_changelog_has_no_repeated_lines():
    """As it would where a merge brings back what was moved to the section of a
    version.
    """
    lines = [
        line
        for line in (ROOT / "CHANGELOG.md").read_text().splitlines()
        if len(line) > 60
    ]
    assert sorted(lines) == sorted(set(lines))


def test_citation_has_required_fields():
    found = citation()
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["cff-version"] == "1.2.0"
    assert found["license"] == PROJECT["license"]
    assert codemeta()["description"] == PROJECT["description"]


def test_conda_recipe_requirements_match_package():
    run = yaml.safe_load(re.sub(r"\{%.*?%\}|[{}]{2}", "", RECIPE))["requirements"][
        "run"
    ]
    needed = {
        f"{name} >={low}"
        for name, low in (item.split(">=") for item in PROJECT["dependencies"])
    }
    assert set(run) == {
        item.replace("matplotlib ", "matplotlib-base ") for item in needed
    } | {"python >=3.11"}
    assert codemeta()["softwareRequirements"] == [
        item.split(">=")[0] for item in PROJECT["dependencies"]
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(path):
    """A forge can read them; every step is an action or a command, every `make` a
    target, every need a job.
    """
    workflow = yaml.safe_load(path.read_text())
    assert {"name", "permissions", "jobs"} <= set(workflow)
    assert True in workflow  # YAML 1.1 reads the key `on` as true, and so do forges
    phony = re.search(
        r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )[1].split()
    for job in workflow["jobs"].values():
        assert {"runs-on", "steps"} <= set(job)
        assert {job["needs"]} <= set(workflow["jobs"]) if "needs" in job else True
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "run" in step:
                targets = re.findall(r"\bmake ([a-z -]+)", step["run"])
                assert all(
                    target in phony for line in targets for target in line.split()
                )


def test_workflow_list_is_complete():
    """Together they run what CONTRIBUTING asks for, and only the release may publish to
    the index.
    """
    text = {path.stem: path.read_text() for path in WORKFLOWS}
    assert set(text) == {"tests", "docs", "release"}
    made = set(re.findall(r"run: make ([a-z-]+)", "\n".join(text.values())))
    assert {
        "lint",
        "test",
        "test-lowest",
        "test-newest",
        "test-browser",
        "docs",
        "dist",
    } <= made
    release = yaml.safe_load(text["release"])
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text["release"]


def test_lint_and_tests_run_on_every_system():
    """Linux and macOS, x86 and ARM: macos-latest is ARM."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())[
        "jobs"
    ]
    for name in ("lint", "test"):
        matrix = jobs[name]["strategy"]["matrix"]
        systems = {*matrix["os"], *(case["os"] for case in matrix.get("include", []))}
        assert systems == {"ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"}
        assert jobs[name]["runs-on"] == "${{ matrix.os }}"
    assert {step.get("run") for step in jobs["all"]["steps"]} >= {"make test-all"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_are_valid(path):
    found = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert set(found) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(found)
    assert all(item["attributes"]["label"] and item["id"] for item in found["body"])


def test_paper_follows_journal_format():
    """Its head, the sections that are asked for, a length of 250 to 1,000 words, keys
    that are in the bibliography.
    """
    _, head, body = PAPER.split("---\n", 2)
    meta = yaml.safe_load(head)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(
        meta
    )
    sections = re.findall(r"^# (.*)$", body, re.MULTILINE)
    assert {"Summary", "Statement of need", "State of the field", "References"} <= set(
        sections
    )
    assert 250 <= len(re.sub(r"```.*?```", "", body, flags=re.DOTALL).split()) <= 1000
    entries = set(
        re.findall(
            r"^@\w+\{(\w+),",
            (ROOT / "paper" / meta["bibliography"]).read_text(),
            re.MULTILINE,
        )
    )
    assert (
        set(re.findall(r"@(\w+)", re.sub(r"```.*?```", "", body, flags=re.DOTALL)))
        == entries
    )
    for picture in re.findall(r"\]\((\S+?)\)$", body, re.MULTILINE):
        assert (ROOT / "paper" / picture).is_file()


def test_code_of_paper_prints_what_it_says(capsys):
    code = re.search(r"```python\n(.*?)```", PAPER, re.DOTALL)[1]
    exec(compile(code, "paper.md", "exec"), {})
    verdict, numbers = capsys.readouterr().out.splitlines()
    assert f"# {verdict}" in code
    kurtosis, kl = re.search(r"# (\S+) and (.*)$", code, re.MULTILINE).groups()
    assert round(float(numbers.split()[0]), 4) == float(kurtosis)
    assert numbers.split(" ", 1)[1] == kl
