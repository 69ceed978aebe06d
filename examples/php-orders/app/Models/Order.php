<?php

declare(strict_types=1);

namespace App\Models;

/** An order. In Laravel it extends Eloquent's Model; here its table is an array. */
final class Order
{
    /** @var array<int, self> */
    private static array $table = [];

    public string $state = 'unpaid';

    private function __construct(public readonly int $id)
    {
    }

    public static function create(int $id): self
    {
        return self::$table[$id] = new self($id);
    }

    public static function find(int $id): ?self
    {
        return self::$table[$id] ?? null;
    }
}
