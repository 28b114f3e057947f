"""The committed reference is what the code says, and leaves nothing out."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.parameter_count import count_parameters
from trainscout.commands.listing import NOT_CHOSEN, parameters
from trainscout.commands.schemas import COMMANDS, groups_of
from trainscout.conf.catalogue import load_catalogue
from trainscout.reference.__main__ import main, reference_pages
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS
from trainscout.simulators.predictor.question.recipe import Recipe

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", name="pages")
def generated() -> dict[str, str]:
    return reference_pages()


@pytest.mark.parametrize("name", ["reference.md", "choices.md", "hardware.md"])
def test_the_committed_page_is_the_generated_one(pages, name):
    committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages[name], "run: python -m trainscout.reference"


def rows(page: str) -> dict[str, list[str]]:
    """Cells of the tables' rows that begin with a name in backticks."""
    found = {}
    for line in page.splitlines():
        if line.startswith(("| `", "| [`")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].split("`")[1]] = cells[1:]
    return found


def test_every_setting_of_every_command_is_listed_and_explained(pages):
    listed = rows(pages["reference.md"])
    for command, schema in COMMANDS.items():
        for prefix, cls in groups_of(command).items():
            for field in dataclasses.fields(cls):
                heading = f"## `{prefix}.{field.name}"
                nested = any(f"{heading}{end}" in pages["reference.md"] for end in "`.")
                # Read by nothing that predicts a declared cluster, and said in a GPU's file.
                nested |= (prefix, field.name) == ("gpu", "usual_server")
                assert f"{prefix}.{field.name}" in listed or nested, (schema, prefix, field.name)
    unexplained = [name for name, cells in listed.items() if not cells[-1]]
    # What they are is what they are called.
    assert unexplained == []


def test_what_is_allowed_is_what_the_checks_allow(pages):
    listed = rows(pages["reference.md"])
    assert listed["recipe.recompute"][0] == "`none`, `selective`, `full`"
    assert listed["recipe.tp"][0] == "integer >= 1"
    assert listed["recipe.zero_stage"][0] == "`0`, `1`, `2`, `3`"
    assert listed["search.batch_size"][0] == "integer >= 1"
    assert listed["cluster.oversubscription"][:2] == ["number >= 1 (2 counts half)", "`null`"]
    assert listed["search.n_trials"][:2] == ["integer >= 1, or `null`", "`600`"]
    assert listed["recipe.sp"][0] == "boolean"
    assert "`hopper`" in listed["gpu.architecture"][0]
    assert listed["recipe.tp"][1] == f"`{Recipe().tp}`"


def test_every_file_of_conf_is_a_choice(pages):
    for path in DECLARATIONS.glob("*/*.yaml"):
        if path.parent.name not in NOT_CHOSEN:
            page = pages["hardware.md" if path.parent.name == "gpu" else "choices.md"]
            assert path.stem in rows(page), path
            assert f"](../conf/{path.parent.name}/{path.name})" in page
    for name in NOT_CHOSEN:
        assert any((DECLARATIONS / name).glob("*.yaml"))


def test_parameters_are_those_counted_matrix_by_matrix():
    catalogue = load_catalogue()
    for name, model in catalogue.models.items():
        if not model.is_plain:  # tests/conf/test_config_json.py holds those
            continue
        counted = count_parameters(model).total
        # The page's are padded to a multiple of 128 rows.
        assert parameters(model) == pytest.approx(counted, rel=1e-5), name


def test_the_command_writes_both_pages(pages, tmp_path, monkeypatch):
    # Made once: the command's own job is to write them.
    monkeypatch.setattr("trainscout.reference.__main__.reference_pages", lambda: pages)
    assert main(["--docs", str(tmp_path)]) == 0
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == pages


def test_a_folder_that_is_not_there_is_bad_input(tmp_path, capsys):
    assert main(["--docs", str(tmp_path / "nowhere")]) == 2
    assert "--docs" in capsys.readouterr().err
