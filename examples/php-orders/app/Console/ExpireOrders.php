<?php

declare(strict_types=1);

namespace App\Console;

use App\Models\Order;
use Redis;

/**
 * Cancels what was not paid in time. In Laravel it is a command that a supervisor keeps running, in
 * any number of processes.
 */
final class ExpireOrders
{
    private const STREAM = 'expired:expired'; // of the keys whose topic is "expired"
    private const GROUP = 'shop';

    public function __construct(private readonly Redis $redis)
    {
        $redis->xGroup('CREATE', self::STREAM, self::GROUP, '$', true);
    }

    /** Waits at most a second for keys that expire, and handles them. */
    public function handle(): void
    {
        $streams = [self::STREAM => '>'];
        $read = $this->redis->xReadGroup(self::GROUP, gethostname(), $streams, 100, 1000);
        foreach ($read[self::STREAM] ?? [] as $id => $entry) {
            if (preg_match('/^order:(\d+)$/', $entry['key'], $match)) {
                $this->expire((int) $match[1]);
            }
            // Without this, after a crash say, it comes again when its lease ends.
            $this->redis->xAck(self::STREAM, self::GROUP, [$id]);
        }
    }

    private function expire(int $id): void
    {
        $order = Order::find($id);
        if ($order?->state === 'unpaid') {
            $order->state = 'cancelled';
            echo "order {$id} was not paid in time\n";
        }
    }
}
