"""``rdukit webhook``: manage webhooks, which notify a URL about job events."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, Duration, ExtensibleGroup
from rdukit.cli.watch import watchable
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import WEBHOOKS
from rdukit_platform.webhooks.states import EVENTS, DeliveryState

#: Exit status of a test whose message was not delivered.
NOT_DELIVERED: Final = 4
#: Seconds that a test waits for the first delivery attempt.
TEST_S: Final = 60.0


@click.group(cls=ExtensibleGroup)
def webhook() -> None:
    """Manage webhooks, which notify URLs about job events by signed messages.

    Example: rdukit webhook add https://example.org/hooks --event job.succeeded --event job.failed

    Example: rdukit webhook list
    """


@webhook.command()
@click.argument("url")
@click.option(
    "--event",
    "events",
    type=Choice(EVENTS),
    multiple=True,
    help="Event that the webhook sends; repeat for more. Default: ends of jobs.",
)
@JSON_OPTION
@TOKEN_OPTION
def add(url: str, events: Sequence[str], as_json: bool) -> None:
    """Add a webhook. Prints its id and, only this once, the secret that signs its messages.

    Example: rdukit webhook add https://example.org/hooks --event job.failed

    Example: rdukit webhook add https://example.org/hooks --event job.succeeded --event job.failed
    """
    _print_new(_call("POST", "/v1/webhooks", {"url": url, "events": list(events)}), as_json)


@webhook.command("list")
@JSON_OPTION
@TOKEN_OPTION
def list_(as_json: bool) -> None:
    """List webhooks, newest first.

    Example: rdukit webhook list

    Example: rdukit webhook list --json
    """
    page = _call("GET", "/v1/webhooks")
    if as_json:
        show.print_json(page)
        return
    rows = [
        (w["id"], show.ago(w["created_at"]), _standing(w), " ".join(w["events"]), w["url"]) for w in page["webhooks"]
    ]
    show.print_table(("ID", "AGE", "STANDING", "EVENTS", "URL"), rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@JSON_OPTION
@TOKEN_OPTION
def remove(webhook_id: str, as_json: bool) -> None:
    """Delete a webhook and its undelivered messages.

    Example: rdukit webhook remove hook-7k2m9x41abcd

    Example: rdukit webhook remove hook-7k2m9x41abcd --context lab
    """
    gone = _call("DELETE", f"/v1/webhooks/{webhook_id}")
    show.print_answer(gone, as_json, f"removed {gone['id']}")


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@click.option("--reason", default="", help="Reason that is shown with the disabled webhook.")
@JSON_OPTION
@TOKEN_OPTION
def disable(webhook_id: str, reason: str, as_json: bool) -> None:
    """Disable a webhook until it is enabled again; its pending messages are dropped.

    Example: rdukit webhook disable hook-7k2m9x41abcd --reason "the receiver moves"

    Example: rdukit webhook disable hook-7k2m9x41abcd
    """
    _print_standing(_call("POST", f"/v1/webhooks/{webhook_id}/disable", {"reason": reason}), as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@JSON_OPTION
@TOKEN_OPTION
def enable(webhook_id: str, as_json: bool) -> None:
    """Enable a disabled webhook for events from now on; dropped messages need redeliver.

    Example: rdukit webhook enable hook-7k2m9x41abcd

    Example: rdukit webhook enable hook-7k2m9x41abcd --context lab
    """
    _print_standing(_call("POST", f"/v1/webhooks/{webhook_id}/enable"), as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@click.option(
    "--grace",
    "grace_s",
    type=Duration(),
    default="1d",
    show_default=True,
    help="Time during which the old secret also signs messages.",
)
@JSON_OPTION
@TOKEN_OPTION
def rotate(webhook_id: str, grace_s: float, as_json: bool) -> None:
    """Replace a webhook's secret. The new one is printed once; for a while both sign messages.

    Example: rdukit webhook rotate hook-7k2m9x41abcd --grace 12h

    Example: rdukit webhook rotate hook-7k2m9x41abcd
    """
    _print_new(_call("POST", f"/v1/webhooks/{webhook_id}/rotate", {"grace_s": grace_s}), as_json)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@JSON_OPTION
@TOKEN_OPTION
def test(webhook_id: str, as_json: bool) -> None:
    """Send a test message to a webhook and wait for the first attempt; exit status 4 if it was not delivered.

    Example: rdukit webhook test hook-7k2m9x41abcd

    Example: rdukit webhook test hook-7k2m9x41abcd --context lab
    """
    sent = _call("POST", f"/v1/webhooks/{webhook_id}/test")
    deadline = time.monotonic() + TEST_S
    while not sent["attempts"] and time.monotonic() < deadline:
        time.sleep(0.2)
        sent = _call("GET", f"/v1/webhooks/{webhook_id}/deliveries/{sent['id']}")
    if as_json:
        show.print_json(sent)
    elif sent["state"] == DeliveryState.DELIVERED:
        click.echo(f"delivered {sent['id']}: the receiver answered {sent['status']}")
    else:
        click.echo(f"{sent['id']} is not delivered: {sent['error'] or 'no scheduler tried it'}", err=True)
    if sent["state"] != DeliveryState.DELIVERED:
        sys.exit(NOT_DELIVERED)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@click.option(
    "--state", type=Choice(tuple(map(str, DeliveryState))), default=None, help="Show only messages in this state."
)
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
@watchable
def deliveries(webhook_id: str, state: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the messages to a webhook, newest first, with their last and next delivery attempts.

    Example: rdukit webhook deliveries hook-7k2m9x41abcd --state dead

    Example: rdukit webhook deliveries hook-7k2m9x41abcd --watch
    """
    with connect() as client:
        page = client.get(f"/v1/webhooks/{webhook_id}/deliveries", state=state, limit=limit, cursor=cursor)
    rows = [
        (
            d["id"], d["event"], d["state"], d["attempts"], show.ago(d["created_at"]),
            show.until(d["due_at"]) if d["state"] == DeliveryState.PENDING else "-", d["error"] or "",
        )
        for d in page["deliveries"]
    ]  # fmt: skip
    show.print_page(page, as_json, ("ID", "EVENT", "STATE", "TRIES", "AGE", "NEXT IN", "LAST ERROR"), rows)


@webhook.command()
@click.argument("webhook_id", metavar="ID", shell_complete=WEBHOOKS)
@click.argument("delivery_id", metavar="DELIVERY")
@JSON_OPTION
@TOKEN_OPTION
def redeliver(webhook_id: str, delivery_id: str, as_json: bool) -> None:
    """Send a message again now, even if it was delivered or dropped.

    Example: rdukit webhook redeliver hook-7k2m9x41abcd msg-7k2m9x41abcd

    Example: rdukit webhook redeliver hook-7k2m9x41abcd msg-7k2m9x41abcd --context lab
    """
    sent = _call("POST", f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver")
    show.print_answer(sent, as_json, f"{sent['id']} is {sent['state']}")


def _call(method: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
    with connect() as client:
        if method == "POST":
            return client.post(path, body)
        return client.delete(path) if method == "DELETE" else client.get(path)


def _print_new(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(made)
    else:
        click.echo(f"id      {made['id']}\nsecret  {made['secret']}")
        click.echo("the secret is shown only once; use it to verify messages", err=True)


def _print_standing(found: dict[str, Any], as_json: bool) -> None:
    show.print_answer(found, as_json, f"{found['id']} is {_standing(found)}")


def _standing(found: dict[str, Any]) -> str:
    """Describe whether a webhook is active, or why it is disabled (pure)."""
    if found["disabled_at"] is not None:
        return f"disabled: {found['disabled_reason']}"
    return f"active; its last {found['failures']} attempts failed" if found["failures"] else "told"
