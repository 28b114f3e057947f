import pytest
from omegaconf import OmegaConf

from trainscout.commands.output_choice import output_choice
from trainscout.simulators.predictor.question.errors import InputError


def chosen(**given):
    return output_choice(OmegaConf.create({"format": "table", "verbosity": "normal"} | given))


def test_what_is_asked_for():
    choice = chosen(format="csv", verbosity="quiet")
    assert (choice.format, choice.verbosity) == ("csv", "quiet")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [({"format": "jsn"}, "json"), ({"verbosity": "quite"}, "quiet")],
)
def test_other_names_are_refused_with_the_nearest(given, nearest):
    with pytest.raises(InputError) as refused:
        chosen(**given)
    assert refused.value.nearest == nearest
    assert refused.value.field in given
