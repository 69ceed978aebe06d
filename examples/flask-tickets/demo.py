"""Two customers: one pays, the other one forgets to."""

import json
import logging
import os
import threading
import time
import urllib.request

import lapse
from werkzeug.serving import make_server

import app

logging.getLogger("werkzeug").setLevel(logging.ERROR)
client = lapse.Client(os.environ.get("LAPSE_URL", "http://127.0.0.1:7480"))
tickets = {}
server = make_server("127.0.0.1", 0, app.create_app(client, tickets, "2s"), threaded=True)
threading.Thread(target=server.serve_forever).start()
url = f"http://127.0.0.1:{server.server_port}"
client.set_topic(app.TOPIC, {"delivery": {"kind": "webhook", "url": f"{url}/hooks/lapse"}})


def call(method, path):
    with urllib.request.urlopen(urllib.request.Request(url + path, method=method)) as answer:
        ticket = json.load(answer)
    print(f"{method} {path}: seat {ticket['seat']} is {ticket['state']}", flush=True)


try:
    call("POST", "/tickets/7a")
    call("POST", "/tickets/7b")
    call("POST", "/tickets/7a/pay")
    while tickets["7b"] == "booked":
        time.sleep(0.05)
    call("GET", "/tickets/7a")
    call("GET", "/tickets/7b")
finally:
    server.shutdown()
