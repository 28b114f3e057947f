import pytest

torch = pytest.importorskip("torch")

from trainscout.simulators.virtual_cluster.emulation.tensors.operations import describe  # noqa: E402


def test_views_that_are_made_in_place() -> None:
    library = torch.library.Library("trainscout_operations_test", "DEF")
    library.define("turn_(Tensor(a!) x) -> Tensor(a!)", tags=(torch.Tag.inplace_view,))
    own = torch.ops.trainscout_operations_test.turn_.default
    aten = torch.ops.aten
    viewed = [describe(each).viewed for each in (aten.t_.default, aten.resize_.default, own)]
    assert viewed == [aten.t.default, None, None]
