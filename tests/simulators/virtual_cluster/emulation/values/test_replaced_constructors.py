"""Values are followed although a script has replaced torch's constructors, as DeepSpeed does."""

import pytest

torch = pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank  # noqa: E402


@pytest.mark.parametrize("make", ["full", "empty"])
def test_a_filled_tensor_is_known(monkeypatch, make):
    made = torch.ones(3)

    def replaced(*args, **kwargs):
        raise AssertionError(f"torch.{make} is the script's")

    rank = FakeRank()
    monkeypatch.setattr(torch, make, replaced)
    with rank:
        fake = rank.enter(made.clone())
        fake.fill_(2.0)
        doubled = fake + fake
    reading = rank.values.read(doubled, "tolist")
    assert reading.grade == "exact"
    assert reading.value.tolist() == [4.0, 4.0, 4.0]
