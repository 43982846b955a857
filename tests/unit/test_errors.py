import metaroce as mr
from metaroce.errors import shown


def test_an_error_is_one_line_naming_field_value_and_what_is_allowed():
    error = mr.ConfigError.unknown("topology", "no\nsuch", ["b", "a"])
    assert str(error) == "topology = 'no\\nsuch': unknown; allowed: a, b"
    assert (error.field, error.value) == ("topology", "no\nsuch")


def test_a_config_error_is_a_value_error_and_ours():
    assert issubclass(mr.ConfigError, ValueError)
    assert issubclass(mr.ConfigError, mr.MetaRoceError)


def test_long_values_are_cut():
    assert len(shown("x" * 500)) == 60


def test_a_stall_names_its_flows():
    flows = [{"src": 0, "dst": k, "stream": 2, "bytes_left": 10, "reason": "all paths dead"} for k in range(1, 6)]
    error = mr.SimulationStalled(flows, 1_500_000, None)
    assert "stalled at 1.500 us with 5 stuck flows: rank 0 -> rank 1 stream 2: 10 bytes left, all paths dead" in str(
        error
    )
    assert str(error).endswith("and 2 more")
