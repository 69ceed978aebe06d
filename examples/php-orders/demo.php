<?php

// Two customers: one pays, the other one forgets to.

declare(strict_types=1);

use App\Console\ExpireOrders;
use App\Models\Order;
use App\Services\Checkout;

spl_autoload_register(function (string $class): void {
    require __DIR__ . '/' . strtr($class, ['App\\' => 'app/', '\\' => '/']) . '.php';
});

$url = parse_url(getenv('REDIS_URL') ?: 'redis://127.0.0.1:7479');
$redis = new Redis();
$redis->connect($url['host'], $url['port']);

$checkout = new Checkout($redis, secondsToPay: 2);
$expireOrders = new ExpireOrders($redis);
$orders = [$checkout->place(41), $checkout->place(42)];
$checkout->pay($orders[0]);
while (Order::find(42)->state === 'unpaid') {
    $expireOrders->handle();
}
foreach ($orders as $order) {
    echo "order {$order->id} is {$order->state}\n";
}
