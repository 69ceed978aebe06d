"""A coupon warns three days and one day before it expires, unless it is used before."""

import os
import threading

import lapse

DAY = float(os.environ.get("DAY", "1"))  # in seconds; in earnest 86400
TOPIC = "coupon.stage"
STAGES = {"expires in 3 days": 3, "expires in 1 day": 1, "has expired": 0}  # days before the end

client = lapse.Client(os.environ.get("LAPSE_URL", "http://127.0.0.1:7480"))
seen = {}  # an event for what has happened to a coupon


def issue(coupon, days):
    """All stages of a coupon are one batch, and one group."""
    answer = client.schedule_batch(
        {
            "id": f"coupon-{coupon}.{before}",
            "topic": TOPIC,
            "group": f"coupon-{coupon}",
            "delay": f"{round((days - before) * DAY * 1000)}ms",
            "payload": {"coupon": coupon, "stage": stage},
        }
        for stage, before in STAGES.items()
    )
    print(f"coupon {coupon} is issued: {answer['accepted']} stages", flush=True)


def use(coupon):
    """Calls off the stages to come."""
    client.cancel_group(f"coupon-{coupon}")
    print(f"coupon {coupon} is used", flush=True)


def tell(delivery, context):
    coupon, stage = delivery["payload"]["coupon"], delivery["payload"]["stage"]
    print(f"coupon {coupon} {stage}", flush=True)
    seen[coupon, stage].set()


for coupon in 7, 8:
    for stage in STAGES:
        seen[coupon, stage] = threading.Event()
worker = lapse.Worker(client, TOPIC, tell)
working = threading.Thread(target=worker.run)
working.start()
issue(7, days=5)
issue(8, days=6)
seen[8, "expires in 3 days"].wait()
use(8)
seen[7, "has expired"].wait()
seen[8, "has expired"].wait(timeout=2 * DAY)  # which does not come
worker.stop()
working.join()
