"""Knobs by family: dataclasses that ``question.recipe`` puts together."""
