import subprocess
import sys

import pytest

import metaroce as mr


def test_every_public_name_loads():
    for name in mr.__all__:
        assert getattr(mr, name) is not None
    assert set(mr.__all__) <= set(dir(mr))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mr.nothing  # noqa: B018


def test_importing_the_package_loads_none_of_its_dependencies():
    code = "import metaroce, sys; print(sorted({'numpy', 'pydantic', 'networkx'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
