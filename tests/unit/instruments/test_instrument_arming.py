"""Row C-02: the text that arms test points is understood completely or refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadSetting
from clarion.instruments import Action, Arming, Delay, Fail, Kill, Log, Stop, parse, parse_environment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("journal.before_sync=kill@3", Arming("journal.before_sync", Kill(), 3)),
        (" mm.before_apply=delay:0.2*5 ", Arming("mm.before_apply", Delay(0.2), 1, 5)),
        ("x=stop", Arming("x", Stop())),
        ("x=fail", Arming("x", Fail("EIO"))),
        ("x=fail:ENOSPC@2*always", Arming("x", Fail("ENOSPC"), 2, None)),
        ("x=fail:my reason", Arming("x", Fail("my reason"))),
        ("x=log:/tmp/a@2", Arming("x", Log("/tmp/a"), 2)),
        ("x=delay:1e-3", Arming("x", Delay(0.001))),
    ],
)
def test_c02_texts_and_what_they_arm(text: str, expected: Arming) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "NAME=ACTION is needed"),
        ("journal.before_sync", "NAME=ACTION is needed"),
        ("Journal=kill", "dotted words"),
        ("x=", "there is no action ''"),
        ("x=explode", "there is no action 'explode': kill, stop, delay, fail and log are known"),
        ("x=call", "call is for tests in the same process"),
        ("x=kill:9", "kill takes no argument"),
        ("x=kill@0", "after @ comes a count from 1, not '0'"),
        ("x=kill@", "after @ comes a count from 1, not ''"),
        ("x=kill@-1", "after @ comes a count from 1, not '-1'"),
        ("x=kill@three", "after @ comes a count from 1, not 'three'"),
        ("x=kill*0", r"after \* comes a count from 1, not '0'"),
        ("x=kill*3@2", r"there is no action 'kill\*3'"),
        ("x=delay", "delay takes seconds, not ''"),
        ("x=delay:", "nothing follows 'delay:'"),
        ("x=delay:soon", "delay takes seconds, not 'soon'"),
        ("x=delay:-1", "delay takes seconds, not '-1'"),
        ("x=delay:inf", "delay takes seconds, not 'inf'"),
        ("x=fail:ENOSPCC", "ENOSPCC is not an errno"),
        ("x=log", "log takes a file in a directory that exists"),
        ("x=log:/nonexistent/directory/file", "log takes a file in a directory that exists"),
    ],
)
def test_c02_texts_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadSetting, match=why) as raised:
        parse(text, "clarion.toml")
    assert raised.value.facts["file"] == "clarion.toml"


def test_c02_the_environment_holds_several() -> None:
    environment = {"CLARION_ARM": "journal.before_sync=kill@3, mm.before_apply=delay:0.2*5,"}
    assert [str(arming) for arming in parse_environment(environment)] == [
        "journal.before_sync=kill@3",
        "mm.before_apply=delay:0.2*5",
    ]
    assert parse_environment({}) == []
    with pytest.raises(BadSetting, match="CLARION_ARM: cannot arm 'b'"):
        parse_environment({"CLARION_ARM": "a=kill,b"})


ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.just(Kill()),
    st.just(Stop()),
    st.builds(Delay, st.floats(0, 1e6)),
    st.builds(Fail, st.sampled_from(["EIO", "ENOSPC", "broken"])),
    st.just(Log("/tmp/passed")),
)


@settings(deadline=None)
@given(ACTIONS, st.integers(1, 10**6), st.none() | st.integers(1, 10**6))
def test_c02_text_reads_back_to_the_same_arming(action: Action, after: int, times: int | None) -> None:
    arming = Arming("journal.before_sync", action, after, times, "clarion.toml")
    assert parse(str(arming), "clarion.toml") == arming


@settings(deadline=None)
@given(st.text(max_size=40))
def test_c02_any_text_is_armed_or_refused(text: str) -> None:
    try:
        parse("x=" + text)
    except BadSetting:
        pass


def test_c02_counts_start_at_one_in_code_too() -> None:
    with pytest.raises(BadSetting):
        Arming("x", Kill(), after=0)
    with pytest.raises(BadSetting):
        Arming("x", Kill(), times=0)
