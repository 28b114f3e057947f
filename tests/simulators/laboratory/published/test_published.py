from dataclasses import replace

from tests.simulators.jobs import LLAMA, make_job
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS, stored_coverage
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.predictor.question.validity import why_invalid

SPLITS = (
    {},
    {"embedding_as_layer": True, "loss_as_layer": True},
    {"pipeline_layout": "balanced"},
)


def test_every_published_pipeline_splits_its_layers_in_some_way():
    ran = {
        (row.num_layers, row.pp, row.vpp or 1)
        for row in read_rows(PUBLISHED_RUNS)
        if row.quality in "AB" and row.num_layers and row.pp and row.pp > 1
    }
    assert {126, 94, 61, 62} <= {layers for layers, _, _ in ran}
    for layers, pp, vpp in ran:
        model = replace(LLAMA, num_layers=layers)
        ways = (
            make_job(model, nodes=pp, batch=8 * pp, pp=pp, vpp=vpp, zero_stage=1, **split)
            for split in SPLITS
        )
        assert any(why_invalid(job) is None for job in ways), (layers, pp, vpp)


def test_the_header_of_any_table_of_residuals(tmp_path):
    path = tmp_path / "residuals.csv"
    path.write_text("# coverage:\n#   level: 0.8\nid,source\na,b\n")
    assert stored_coverage(path) == {"level": 0.8}
