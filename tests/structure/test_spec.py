"""Citations of requirements: each names one that exists, and in test code stands in a test."""

from pathlib import Path

from metaroce.reports.spec import Spec


def test_every_citation_names_a_requirement_and_each_in_test_code_a_test():
    assert Spec.load(Path(__file__)).problems() == []
