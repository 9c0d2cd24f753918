"""`clarion admin policy`: rules for how destinations behave. docs/operating/policies.md explains each field."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.admin import request
from clarion.cli.options import URL_DEFAULT, Json, Url

app = typer.Typer(help="Rules for how destinations behave.", no_args_is_help=True)

Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="The name of a destination, glob:… or regex:…")]


@app.command("list")
def listed(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List all rules, in the order in which they count: later ones over earlier ones."""
    result = request(url, "policies")
    if json:
        show.json(result)
        return
    rules = [(pattern, where, _said(policy)) for where in ("file", "set") for pattern, policy in result[where]]
    show.table(("rule", "from", "policy"), [(pattern, _FROM[where], said) for pattern, where, said in rules])


_FROM = {"file": "settings", "set": "online"}


@app.command("set")
def set_policy(
    pattern: Pattern,
    fields: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE…", help="As deliveries_max=5 redelivery_ms='1 s' quota_bytes='64 MiB'."),
    ],
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Set a rule: from now on these fields are all that it says.

    It is durable, and holds at once for every destination that it matches.
    """
    said = _parsed(pattern, fields)
    result = request(url, "set_policy", pattern=pattern, policy=said)
    if json:
        show.json({"pattern": pattern, "policy": result})
    else:
        typer.echo(f"set for {pattern}: {_said(result)}")


def _parsed(pattern: str, fields: list[str]) -> dict[str, Any]:
    """The fields with their values. What is wrong with them is wrong usage."""
    from clarion.core.policies import check_rule, parse_policy
    from clarion.errors import BadArgument, BadPattern

    given: dict[str, str] = {}
    for text in fields:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not FIELD=VALUE", param_hint="FIELD=VALUE")
        if name in given:
            raise typer.BadParameter("it is given twice", param_hint=name)
        given[name] = value
    try:
        check_rule(pattern)
        return parse_policy(given).said()
    except BadPattern as error:
        raise typer.BadParameter(str(error), param_hint="PATTERN") from None
    except BadArgument as error:
        raise typer.BadParameter(str(error.facts["detail"]), param_hint=str(error.facts["argument"])) from None


@app.command()
def remove(pattern: Pattern, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Remove a rule that was set online. Rules of the settings file stay."""
    request(url, "remove_policy", pattern=pattern)
    if json:
        show.json({"removed": pattern})
    else:
        typer.echo(f"removed the rule for {pattern}")


def _said(policy: dict[str, Any]) -> str:
    """What a rule says, in the form that `set` takes."""
    return " ".join(f"{field}={_quoted(value_text(field, value))}" for field, value in policy.items())


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text else text


def value_text(field: str, value: object) -> str:
    """The value of a field as somebody would write it. `parse_policy` reads it as the same value."""
    if isinstance(value, bool):
        return str(value).lower()
    words = field.split("_")
    if isinstance(value, int) and "bytes" in words:
        return show.exact_size(value)
    if isinstance(value, int) and "ms" in words:
        return show.duration(value)
    return str(value)
