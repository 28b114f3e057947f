import pytest

from trainscout.simulators.laboratory.published.era import published_year
from trainscout.simulators.laboratory.published.rows import Row


@pytest.mark.parametrize(
    ("label", "year"),
    [
        ("Megatron-LM (Jan 2021)", 2021.0),
        ("Megatron-LM (2022)", 2022.5),
        ("NeMo 24.07", 2024.5),
        ("NeMo (MLPerf v4.1)", 2024.8),
        ("Megatron-LM (mcore r0.8.0)", 2024.5),
        ("Megatron-DeepSpeed", None),
    ],
)
def test_labels_carry_years(label, year):
    found = published_year(Row(id="x", gpu="h100", framework=label))
    assert found == (None if year is None else pytest.approx(year))


def test_the_paper_s_year_when_the_label_has_none():
    row = Row(id="x", gpu="a100_80", framework="Megatron-LM PTD-P", source="Narayanan et al. 2021")
    assert published_year(row) == 2021.5
