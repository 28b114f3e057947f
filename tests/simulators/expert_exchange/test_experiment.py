import pytest

from trainscout.simulators.expert_exchange.experiment import Message
from trainscout.simulators.predictor.question.errors import InputError


def test_a_message_carries_weight_destination_source_position_and_embedding() -> None:
    assert Message(2, 2, 4).copy_bytes == 2 + 2 + 4 + 4
    assert Message(4, 1, 2, embed_dim=4096, embed_precision=2).copy_bytes == 4 + 1 + 2 + 2 + 8192


@pytest.mark.parametrize(
    "field",
    ["weight_precision", "routing_precision", "id_precision", "embed_dim", "embed_precision"],
)
def test_impossible_sizes_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=field):
        Message(**{field: -1}).check()
