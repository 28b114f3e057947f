"""What nobody gave is marked on the first line."""

import pytest

from tests.in_process import command

simulate = command("simulate")


@pytest.mark.parametrize(
    ("given", "assumed"),
    [
        ([], "(model, cluster, batch and length assumed)"),
        (["model=llama3_8b"], "(cluster, batch and length assumed)"),
        (["model=llama3_8b", "gpus=16xH100"], "(batch and length assumed)"),
        (["model=llama3_8b", "gpus=16xH100", "training=lora"], "(batch and length assumed)"),
        (["model.num_layers=12", "cluster.num_nodes=2"], "(batch and length assumed)"),
        (
            ["model=llama3_8b", "cluster=h100_64", "training.global_batch_size=64"],
            "(length assumed)",
        ),
    ],
)
def test_what_is_assumed(capsys, given, assumed):
    assert simulate([*given, "recipe.tp=8", "recipe.pp=2", "verbosity=quiet"]) == 0
    assert assumed in " ".join(capsys.readouterr().out.split())
