"""Tickets that go back on sale unless they are paid in time."""

import flask
import lapse

TOPIC = "ticket.unpaid"


def create_app(client: lapse.Client, tickets: dict[str, str], time_to_pay: str) -> flask.Flask:
    """tickets are the states of tickets, in the place of your database."""
    app = flask.Flask(__name__)

    @app.post("/tickets/<seat>")
    def book(seat):
        if tickets.get(seat, "free") != "free":
            flask.abort(409)
        tickets[seat] = "booked"
        client.replace(TOPIC, id=f"ticket-{seat}", delay=time_to_pay, payload={"seat": seat})
        return {"seat": seat, "state": tickets[seat]}, 201

    @app.post("/tickets/<seat>/pay")
    def pay(seat):
        if tickets.get(seat) != "booked":
            flask.abort(409)
        tickets[seat] = "paid"
        try:
            client.cancel(f"ticket-{seat}")
        except lapse.LapseError:
            pass  # too late, or it fails: the webhook finds a ticket that is paid
        return {"seat": seat, "state": tickets[seat]}

    @app.get("/tickets/<seat>")
    def show(seat):
        return {"seat": seat, "state": tickets.get(seat, "free")}

    @app.post("/hooks/lapse")
    def time_is_over():
        seat = flask.request.get_json()["seat"]
        if tickets.get(seat) == "booked":
            tickets[seat] = "free"
            print(f"seat {seat} was not paid in time", flush=True)
        return "", 204  # any other answer: again later

    return app
