import pytest

from metaroce import TRANSPORTS, ConfigError, Fault, Loss
from metaroce.config import Config, TransportChoice, resolve_transport


class Inner(Config):
    loss: Loss = Loss()
    number: int = 1


class Outer(Config):
    inner: Inner


def refusal(make, *args, **fields):
    with pytest.raises(ConfigError) as error:
        make(*args, **fields)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_unknown_key_lists_the_known_ones():
    assert refusal(Inner, numbr=2) == "key = 'numbr': unknown; allowed: loss, number"


def test_a_nested_field_is_named_by_its_whole_path():
    assert (
        refusal(Outer, inner={"loss": "200%"})
        == """inner.loss.probability = '200%': must be in [0, 1), like 0.01 or "1%\""""
    )


def test_a_missing_key_lists_the_required_ones():
    assert refusal(Outer) == "inner = None: missing; required keys: inner"


def test_a_wrong_type_shows_the_value():
    assert refusal(Inner, number="x").startswith("number = 'x': must be a valid integer")


def test_models_are_frozen_and_replace_validates():
    inner = Inner(number=2)
    assert inner.replace(loss="1%") == Inner(number=2, loss={"probability": 0.01})
    assert "number" in refusal(inner.replace, number="x")


def test_a_transport_is_a_name_or_a_dict_with_overrides():
    assert resolve_transport("rocev2-67ms").spec() == {"kind": "rocev2", "timer": "fixed"}
    custom = resolve_transport({"kind": "rocev2-adaptive", "qps": 4})
    assert custom == TransportChoice("rocev2", "custom", {"timer": "adaptive", "qps": 4})
    assert resolve_transport({"kind": "metaroce"}) == TRANSPORTS["metaroce"]


def test_both_timer_settings_and_both_recoveries_of_rocev2_are_named():
    assert [name for name, choice in TRANSPORTS.items() if choice.kind == "rocev2"] == [
        "rocev2-adaptive",
        "rocev2-67ms",
        "rocev2-sr",
    ]
    assert resolve_transport("rocev2-sr").spec() == {"kind": "rocev2", "recovery": "selective-repeat"}


@pytest.mark.parametrize("value", ["tcp", {"kind": "tcp"}, {"timer": "fixed"}, 5, {"kind": 3}])
def test_an_unknown_transport_lists_the_known_ones(value):
    assert "rocev2-67ms" in refusal(resolve_transport, value)


def test_loss_leaves_defaults_out():
    assert Loss(probability="1%").spec() == {"probability": 0.01}
    assert Loss(probability=0.1, per="link", on="data").spec() == {"probability": 0.1, "per": "link", "on": "data"}


@pytest.mark.parametrize("fields", [{}, {"a": "p0.leaf0"}, {"id": 1, "a": "x", "b": "y"}])
def test_a_link_fault_names_one_link(fields):
    assert "never both ways" in refusal(Fault, at="1us", target="link", **fields)


def test_a_plane_has_no_ends():
    assert "named by id" in refusal(Fault, at=0, target="plane", a="x", b="y")
