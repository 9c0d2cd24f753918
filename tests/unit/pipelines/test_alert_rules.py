"""Files of alert rules: what is read, and what is refused with line and column."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadSetting, NoPermission
from clarion.pipelines.alerts import messages, rules
from clarion.pipelines.alerts.machine import Alert
from clarion.pipelines.alerts.places import Place, scan
from clarion.pipelines.alerts.reading import parse
from clarion.pipelines.alerts.rules import Rule, load

EXAMPLE = Path(__file__).parents[3] / "examples" / "alerts" / "rules.toml"


def test_d06_the_example_is_valid_and_has_every_kind() -> None:
    known = load(EXAMPLE)
    assert {type(rule.condition) for rule in known} == {
        rules.Count,
        rules.Value,
        rules.Storm,
        rules.Silence,
        rules.Flapping,
        rules.Sequence,
    }
    assert known[0] == Rule(
        name="volume-failing",
        condition=rules.Count(3, 300_000),
        where="JMSType = 'disk.error' AND severity_level >= 40",
        severity="critical",
        message="{source} failed {count} times, last at {last}",
        cooldown_ms=600_000,
    )
    assert known[3].condition == rules.Silence(120_000, (("controller/1",), ("controller/2",)))
    assert known[5].selectors[-1] == "JMSType = 'password.changed'" and len(known[5].selectors) == 4


def test_d06_defaults() -> None:
    (rule,) = parse('[[rule]]\nname="a"\nkind="storm"\nwithin="1 min"\nfactor=2\n')
    assert rule == Rule(
        name="a",
        condition=rules.Storm(60_000, 600_000, 2.0, 10),
        message="{count} events from {key}, where {value} are usual",
    )
    assert (rule.by, rule.severity, rule.clear, rule.ordered, rule.lateness_ms) == (
        ("source",),
        "warning",
        True,
        False,
        5_000,
    )
    (rule,) = parse('[[rule]]\nname="a"\nkind="silence"\nafter="2 d"\n')
    assert rule.forget_ms > rule.condition.horizon_ms


def test_d06_what_is_remembered_does_not_depend_on_what_is_only_said() -> None:
    base = '[[rule]]\nname="a"\nkind="silence"\nafter="10 s"\n'
    (rule,) = parse(base)
    for more, is_same in (
        ('severity="alert"', True),
        ('message="x"', True),
        ('expect=["a"]', True),
        ('lateness="1 s"', True),
        ("where=\"a = 'b'\"", False),
        ('by=["type"]', False),
    ):
        assert (parse(base + more)[0].fingerprint == rule.fingerprint) is is_same, more


COUNT = '[[rule]]\nname = "a"\nkind = "threshold"\ncount = 3\nwithin = "5 min"\n'
SEQUENCE = '[[rule]]\nname = "s"\nkind = "sequence"\nwithin = "1 min"\n'
SILENCE = '[[rule]]\nname = "q"\nkind = "silence"\nafter = "1 min"\n'
GOLDEN = [
    ("rule = ", 1, 8, "this is no TOML: Invalid value"),
    ('[[rule]]\nname = "a', 2, 10, "this is no TOML: Unterminated string"),
    ("[[rule]]\nname = 1\nname = 2\n", 3, 9, "this is no TOML: Cannot overwrite a value"),
    ("a = " + "[" * 5_000, 1, 1, "this is no TOML: maximum recursion depth exceeded"),
    ("a = " + "1" * 5_000, 1, 1, "this is no TOML: Exceeds the limit"),
    ("", 1, 1, "there is no [[rule]]"),
    ("# none\n[rules]\n", 2, 1, "rules: there are only tables [[rule]]"),
    ("rule = 3\n", 1, 1, "rule: each rule is a table [[rule]]"),
    ("\n[[rule]]\n", 2, 1, "rule number 1: name: it is missing"),
    ('[[rule]]\nname = "a b"\n', 2, 8, "rule a b: name: it is 1 to 100 letters, digits, '-' and '_', not 'a b'"),
    ('[[rule]]\nname = "a"\nkind = "magic"\n', 3, 8, "rule a: kind: it is one of threshold, storm, silence,"),
    (COUNT + COUNT, 7, 8, "rule a: name: another rule has this name"),
    (COUNT.replace("count = 3", "count = 0"), 4, 9, "rule a: count: it is a whole number from 1 to 10000, not 0"),
    (COUNT.replace("count = 3", "count = true"), 4, 9, "rule a: count: it is a whole number from 1 to 10000, not True"),
    (COUNT.replace("count = 3\n", ""), 1, 1, "rule a: count: it is missing"),
    (COUNT.replace("within", "wihtin"), 5, 1, "rule a: wihtin: did you mean within?"),
    (COUNT.replace("5 min", "5 m"), 5, 10, "rule a: within: a duration is a number of milliseconds or text like"),
    (COUNT.replace('"5 min"', "0"), 5, 10, "rule a: within: 0 ms is not within 1 ms to"),
    (COUNT + "  factor = 2\n", 6, 3, "rule a: factor: a rule of kind threshold has no such key"),
    (COUNT + 'cooldwon = "1 s"\n', 6, 1, "no such key; did you mean cooldown?"),
    (COUNT + 'severity = "bad"\n', 6, 12, "rule a: severity: it is one of debug, info, notice"),
    (COUNT + 'forget = "1 min"\n', 6, 10, "rule a: forget: 60000 ms is not within 300001 ms to"),
    (COUNT + 'clear = "yes"\n', 6, 9, "rule a: clear: it is true or false, not 'yes'"),
    (COUNT + 'by = "source"\n', 6, 6, "rule a: by: it is a list, not 'source'"),
    (COUNT + 'by = ["x", "y", "x"]\n', 6, 17, "rule a: by: a name is not empty, and stands here once"),
    (COUNT + 'where = "a = "\n', 6, 14, "rule a: where: this is no selector: the selector ends too early"),
    (COUNT + "where = 'x == 1'\n", 6, 13, "rule a: where: this is no selector: = cannot stand here"),
    (COUNT + 'where = "\\u0061 = \\"b"\n', 6, 19, "rule a: where: this is no selector: a string is written in single"),
    (
        COUNT + 'where = """\na = 1\n  AND b = !"""\n',
        8,
        11,
        "rule a: where: this is no selector: not equal is written <>",
    ),
    (COUNT + 'where = """a = 1 \\\n    AND !"""\n', 7, 9, "this is no selector: not equal is written <>"),
    (COUNT + 'message = "{who}"\n', 6, 12, "rule a: message: there is no {who}; there are rule, kind,"),
    (COUNT + 'message = "{count:d}"\n', 6, 12, "rule a: message: a name stands alone in its braces"),
    (COUNT + 'message = "{"\n', 6, 11, "rule a: message: a brace is written twice where it is no name"),
    (COUNT.replace("count = 3", 'value = "x"'), 4, 9, "rule a: value: it needs a limit: over, or under, or both"),
    (COUNT.replace("count = 3", 'value = "x"\nover = 1'), 6, 1, "rule a: within: a rule of kind threshold has no such"),
    (COUNT.replace("count = 3", 'value = "x"\nover = nan'), 5, 8, "rule a: over: it is a number, not nan"),
    (
        '[[rule]]\nname = "a"\nkind = "threshold"\nvalue = "x"\nover = 1\nunder = 2\n',
        6,
        9,
        "rule a: under: it is not above over",
    ),
    (SEQUENCE + 'steps = ["a = 1"]\n', 5, 9, "rule s: steps: there are 1 steps, 2 to 16 are allowed"),
    (SEQUENCE + 'steps = ["a = 1",\n  # why\n  "b ! 2"]\n', 7, 6, "rule s: steps: this is no selector: not equal is"),
    (SEQUENCE + 'steps = ["a = 1", 2]\n', 5, 19, "rule s: steps: it is a text, not 2"),
    (SILENCE + 'expect = ["a", ["b", "c"]]\n', 5, 16, "rule q: expect: a key is a text, not ['b', 'c']"),
    (SILENCE + 'by = ["x", "y"]\nexpect = ["a"]\n', 6, 11, "rule q: expect: a key is a list of 2 texts"),
    ('rule = [{name = "a", kind = "silence", after = "x"}]\n', 1, 48, "rule a: after: a duration is"),
    ('[["rule"]]\n"name" = "a"\n"kind"="silence"\nafter = []\n', 4, 9, "rule a: after: a duration is"),
    (COUNT * 101, 501, 1, "there are more than 100 rules"),
]


@pytest.mark.parametrize(("text", "line", "column", "detail"), GOLDEN, ids=lambda value: str(value)[-30:])
def test_d06_what_is_wrong_is_refused_with_line_and_column(text: str, line: int, column: int, detail: str) -> None:
    with pytest.raises(BadSetting) as caught:
        parse(text, "rules.toml")
    assert str(caught.value).startswith(f"CLN-401 rules.toml: line {line}, column {column}: ")
    assert detail in str(caught.value)
    assert (caught.value.facts["line"], caught.value.facts["column"]) == (line, column)


def test_d06_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match=r"none.toml: it cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(BadSetting, match=r"latin.toml: it is not UTF-8 at byte 5"):
        load(tmp_path / "latin.toml")

    def refuse(path: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(NoPermission):
        load(tmp_path / "latin.toml")


# --- places ---------------------------------------------------------------------------------------

_KEYS = st.sampled_from(["a", "b-c", '"quoted key"', "'single'", "d_1"])
_BLANKS = st.sampled_from(["", " ", "\t "])
_BREAKS = st.sampled_from(["\n", " # a comment ] } ' \"\n", "\n\n", "\r\n"])
_SCALARS = st.sampled_from(
    [
        "1",
        "-2.5e3",
        "true",
        "2026-01-01T00:00:00Z",
        '"x"',
        "'y # \"'",
        '""',
        '"\\" # \\\\"',
        '"""a\n"" b"""',
        "'''\n'q'''",
    ]
)
_TREES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def _written(value: object, draw: st.DrawFn) -> str:
    if isinstance(value, str):
        return value
    assert isinstance(value, list)
    inner = [f"{draw(_BREAKS)}{draw(_BLANKS)}{_written(each, draw)}" for each in value]
    return f"[{','.join(inner)}{draw(_BLANKS)}]"


@st.composite
def _documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        lines.append(f"{draw(_BLANKS)}[[{draw(_BLANKS)}rule{draw(_BLANKS)}]]{draw(_BREAKS)}")
        for key in draw(st.lists(_KEYS, unique=True, max_size=3)):
            value = _written(draw(_TREES), draw)
            lines.append(f"{draw(_BLANKS)}{key}{draw(_BLANKS)}={draw(_BLANKS)}{value}{draw(_BREAKS)}")
    return "".join(lines)


@settings(max_examples=200, deadline=None)
@given(_documents())
def test_d06_every_value_of_a_text_is_found_where_it_stands(text: str) -> None:
    """What stands at the place of a value, cut out and read again, is the value."""
    places = scan(text)
    lines = text.split("\n")
    for number, table in enumerate(tomllib.loads(text)["rule"]):
        header = places.key("rule", number)
        assert lines[header.line - 1][header.column - 1 :].startswith("[[")
        for key, value in table.items():
            place = places.value("rule", number, key)
            rest = "\n".join([lines[place.line - 1][place.column - 1 :], *lines[place.line :]])
            assert _first(rest) == value
            for at, element in enumerate(value if isinstance(value, list) else ()):
                place = places.value("rule", number, key, at)
                rest = "\n".join([lines[place.line - 1][place.column - 1 :], *lines[place.line :]])
                assert _first(rest) == element
            if isinstance(value, str) and value:
                inside = places.inside(len(value) - 1, "rule", number, key)
                assert lines[inside.line - 1][inside.column - 1 :].removeprefix("\\")[0] == value[-1]


def _first(rest: str) -> object:
    """The value that a text begins with: the shortest beginning that is one, up to the end of a line or element."""
    for end in range(1, len(rest) + 1):
        if end == len(rest) or rest[end] in ",]\n\r \t#":
            try:
                return tomllib.loads(f"x = {rest[:end]}")["x"]
            except tomllib.TOMLDecodeError:
                continue
    raise AssertionError(rest)


def test_d06_a_place_that_is_not_there_is_the_one_above_it() -> None:
    places = scan("[[rule]]\na = 1\n\n[[rule]]\n  b.c = [1, 2]\n[rule.sub]\nd = 4\n")
    assert places.value("rule", 1, "b", "c", 1) == Place(5, 13)
    assert places.value("rule", 1, "sub", "d") == Place(7, 5)
    assert places.key("rule", 1, "nothing") == Place(4, 1)
    assert places.value("rule", 9, "x") == Place(1, 1)


# --- alerts as events -----------------------------------------------------------------------------


def test_d06_an_alert_as_an_event() -> None:
    rule = Rule(
        name="hot",
        condition=rules.Value("celsius", 80.0, None, 0),
        by=("source", "room.name"),
        severity="critical",
        message="{source} in {room.name}: {value} {{sic}}",
    )
    alert = Alert(True, 1_700_000_000_123, 1_700_000_000_123, 2, 1_700_000_000_000, 1_700_000_000_100, ("a", "b"), "81")
    event = messages.event(rule, '["pump/1",null]', alert)
    assert event._replace(body="", correlation_id="") == messages.Event(
        "hot", "pump/1, ?", "alert.raised", "alerts/hot", "critical", "2023-11-14T22:13:20.123Z", "", ""
    )
    assert event.body == (
        '{"rule":"hot","kind":"threshold","state":"raised","alert":"'
        + event.correlation_id
        + '","severity":"critical",'
        '"message":"pump/1 in ?: 81 {sic}","key":{"source":"pump/1","room.name":null},"count":2,'
        '"first":"2023-11-14T22:13:20.000Z","last":"2023-11-14T22:13:20.100Z","since":"2023-11-14T22:13:20.123Z",'
        '"value":"81","evidence":["a","b"]}'
    )
    cleared = Alert(False, 1_700_000_009_000, alert.since_ms, 3, alert.first_ms, 1_700_000_009_000, ("c",), "7")
    after = messages.event(rule, '["pump/1",null]', cleared)
    assert (after.type, after.severity, after.correlation_id) == ("alert.cleared", "notice", event.correlation_id)
