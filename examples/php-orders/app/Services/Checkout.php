<?php

declare(strict_types=1);

namespace App\Services;

use App\Models\Order;
use Redis;

/** Places orders, and takes their payments. */
final class Checkout
{
    public function __construct(private readonly Redis $redis, private readonly int $secondsToPay)
    {
    }

    public function place(int $id): Order
    {
        $order = Order::create($id);
        $this->redis->setex("order:{$order->id}", $this->secondsToPay, 'unpaid');

        return $order;
    }

    public function pay(Order $order): void
    {
        $order->state = 'paid';
        $this->redis->del("order:{$order->id}");
    }
}
