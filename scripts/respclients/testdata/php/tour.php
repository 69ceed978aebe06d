<?php
// What a program does with phpredis or Predis: tour.php HOST PORT PASSWORD phpredis|predis.
// With "subscribe" after that it is the subscriber, which is a process of its own in PHP: it
// prints the channel, the text and the moment of each message.

error_reporting(E_ALL & ~E_DEPRECATED); // Predis 1 is older than PHP 8
set_error_handler(function ($level, $text) {
    if (error_reporting() & $level) {
        throw new ErrorException($text);
    }
    return true;
});

[, $host, $port, $password, $library] = $argv;
$predis = $library === 'predis';
if ($predis) {
    require 'Predis/Autoloader.php';
    Predis\Autoloader::register();
}

function client(?string $with = null): object
{
    global $host, $port, $password, $predis;
    if ($predis) {
        $c = new Predis\Client(['host' => $host, 'port' => (int) $port, 'password' => $with ?? $password, 'read_write_timeout' => 30]);
        $c->connect();
        return $c;
    }
    $c = new Redis();
    $c->connect($host, (int) $port, 5.0);
    $c->setOption(Redis::OPT_READ_TIMEOUT, 30);
    if (!$c->auth($with ?? $password)) {
        throw new RedisException($c->getLastError());
    }
    return $c;
}

function raw(string ...$args): mixed
{
    global $r, $predis;
    if ($predis) {
        return $r->executeRaw($args);
    }
    $r->clearLastError();
    $answer = $r->rawCommand(...$args);
    return $answer === false && $r->getLastError() ? $r->getLastError() : $answer;
}

function ok(string $step): void
{
    echo "ok $step\n";
}

function check(mixed $got, mixed $want): void
{
    if ($got !== $want) {
        throw new Exception('got ' . var_export($got, true) . ', want ' . var_export($want, true));
    }
}

function within(float $seconds, callable $yes): mixed
{
    for ($end = microtime(true) + $seconds; !($found = $yes()); usleep(10_000)) {
        if (microtime(true) > $end) {
            throw new Exception("still waiting after $seconds s");
        }
    }
    return $found;
}

// again calls f, and returns null if the connection has broken.
function again(callable $f): mixed
{
    global $r, $predis;
    try {
        return $f();
    } catch (RedisException | Predis\Connection\ConnectionException | ErrorException) {
        try {
            $r = client();
        } catch (RedisException | Predis\Connection\ConnectionException | ErrorException) {
        }
        return null;
    }
}

if (($argv[5] ?? '') === 'subscribe') {
    $channels = ['__keyevent@0__:expired', 'chat'];
    $hear = fn ($channel, $text) => print($channel . ' ' . $text . ' ' . microtime(true) . "\n");
    for (;; usleep(50_000)) {
        try {
            $c = client();
            if (!$predis) {
                $c->setOption(Redis::OPT_READ_TIMEOUT, -1);
                echo "subscribed\n";
                $c->subscribe($channels, fn ($c, $channel, $text) => $hear($channel, $text));
                continue;
            }
            $loop = $c->pubSubLoop(['subscribe' => $channels]);
            foreach ($loop as $message) {
                match ($message->kind) {
                    'subscribe' => $message->payload === 2 ? print("subscribed\n") : null,
                    'message' => $hear($message->channel, $message->payload),
                };
            }
        } catch (RedisException | Predis\Connection\ConnectionException | ErrorException) {
        }
    }
}

$r = client();
$ok = fn (mixed $answer) => check($predis ? (string) $answer : $answer, $predis ? 'OK' : true);

// Connection.
check((string) raw('PING'), $predis ? 'PONG' : '1') ;
raw('CLIENT', 'SETNAME', 'tour');
check(raw('CLIENT', 'GETNAME'), 'tour');
$info = $r->info();
check(isset($info['redis_version']) || isset($info['Server']['redis_version']), true);
check($r->echo('hello'), 'hello');
$ok($r->select(0));
try {
    client('wrong');
    throw new Exception('a wrong password is accepted');
} catch (RedisException | Predis\Connection\ConnectionException | Predis\Response\ServerException $e) {
    check(str_contains($e->getMessage(), 'WRONGPASS'), true);
}
check(str_contains(raw('NOSUCH'), 'unknown command'), true);
ok('connection');

// Keys.
$ok($predis ? $r->set('k', 'v', 'EX', 100) : $r->set('k', 'v', ['EX' => 100]));
check($r->get('k'), 'v');
check(in_array($r->ttl('k'), [99, 100], true), true);
check((int) $r->expire('k', 50), 1);
check($r->pttl('k') <= 50_000, true);
check((int) $r->persist('k'), 1);
check($r->ttl('k'), -1);
check((int) $r->expireat('k', time() + 60), 1);
check($predis ? $r->set('k', 'w', 'NX') : $r->set('k', 'w', ['NX']), $predis ? null : false);
check(raw('SET', 'k', 'x', 'PX', '90000', 'GET'), 'v');
check($r->getset('k', 'y'), 'x');
$ok($r->setex('k2', 70, 'z'));
$ok($r->psetex('k3', 70_000, 'z'));
check((int) $r->setnx('k4', 'z'), 1);
check(raw('GETEX', 'k2', 'EX', '80'), 'z');
check(raw('GETDEL', 'k4'), 'z');
$ok($r->mset(['m1' => '1', 'm2' => '2']));
check($r->mget(['m1', 'missing', 'm2']), ['1', $predis ? null : false, '2']);
check($r->append('m1', '23'), 3);
check($r->strlen('m1'), 3);
$ok($r->rename('m1', 'm3'));
check($r->del(['k', 'k2', 'k3', 'm2', 'm3', 'missing']), 5);
check($r->get('k'), $predis ? null : false);
check($r->ttl('k'), -2);
$binary = implode('', array_map('chr', range(0, 255)));
$ok($r->setex($binary, 60, $binary));
check($r->get($binary), $binary);
check($r->del($binary), 1);
ok('keys');

// Numbers.
check($r->incr('n'), 1);
check($r->incrby('n', 9), 10);
check($r->decr('n'), 9);
check((float) $r->incrbyfloat('n', 0.5), 9.5);
check(str_contains(raw('INCR', 'n'), 'not an integer'), true);
check($r->del('n'), 1);
ok('numbers');

// Scan.
$names = array_map(fn ($i) => "scan:$i", range(0, 249));
sort($names);
$fill = function ($p) use ($names) {
    foreach ($names as $name) {
        $p->setex($name, 300, 'v');
    }
};
if ($predis) {
    check(count($r->pipeline($fill)), 250);
    $found = iterator_to_array(new Predis\Collection\Iterator\Keyspace($r, 'scan:*', 17), false);
} else {
    $fill($p = $r->pipeline());
    check($p->exec(), array_fill(0, 250, true));
    $found = [];
    $cursor = null;
    while (($page = $r->scan($cursor, 'scan:*', 17)) !== false) {
        array_push($found, ...$page);
    }
}
$found = array_values(array_unique($found));
sort($found);
check($found, $names);
check(count($r->keys('scan:?')), 10);
check($r->dbsize() >= 250, true);
check($r->del($names), 250);
ok('scan');

// Transactions.
if ($predis) {
    $answers = $r->transaction(function ($t) {
        $t->setex('t', 60, '1');
        $t->incr('t');
        $t->get('t');
    });
    check(array_slice($answers, 1), [2, '2']);
} else {
    check($r->multi()->setex('t', 60, '1')->incr('t')->get('t')->exec(), [true, 2, '2']);
}
$other = client();
raw('WATCH', 't');
$other->set('t', '5');
raw('MULTI');
raw('SET', 't', '9');
check((bool) raw('EXEC'), false);
check($other->get('t'), '5');
$r->del('t');
ok('transactions');

// Subscriptions.
$command = array_merge([PHP_BINARY], array_slice($argv, 0, 5), ['subscribe']);
$subscriber = proc_open($command, [1 => ['pipe', 'w']], $pipes);
register_shutdown_function(fn () => proc_terminate($subscriber, 9));
stream_set_blocking($pipes[1], false);
$heard = [];
// hear reads a line of the subscriber, if there is one.
$hear = function () use (&$heard, $pipes): bool {
    if (($line = fgets($pipes[1])) === false) {
        return false;
    }
    $words = explode(' ', trim($line));
    $heard[$words[1] ?? $words[0]][] = (float) ($words[2] ?? 0);
    return true;
};
$heardOf = function (string $text) use (&$heard, $hear): bool {
    while ($hear()) {
    }
    return isset($heard[$text]);
};
within(20, fn () => $heardOf('subscribed'));
within(20, fn () => $r->publish('chat', 'hello') === 1); // phpredis does not say when it has subscribed
within(5, fn () => $heardOf('hello'));
$r->config('SET', 'notify-keyspace-events', 'Ex');
$due = [];
for ($i = 0; $i < 20; $i++) {
    $due["e:$i"] = microtime(true) + 0.3 + $i / 100;
    $r->psetex("e:$i", 300 + $i * 10, 'v');
}
$late = [];
foreach ($due as $key => $at) {
    within(20, fn () => $heardOf($key));
    array_push($late, ...array_map(fn ($moment) => $moment - $at, $heard[$key]));
}
check(count($late), 20);
if (min($late) < -0.001 || max($late) > 2) {
    throw new Exception('from ' . min($late) . ' to ' . max($late) . ' s late');
}
printf("late by at most %.1f ms\n", max($late) * 1000);
ok('subscriptions');

// Streams.
$stream = 'expired:jobs';
$read = fn (string $id) => raw('XREADGROUP', 'GROUP', 'workers', 'w1', 'COUNT', '10', 'BLOCK', '2000', 'STREAMS', $stream, $id);
$create = fn () => raw('XGROUP', 'CREATE', $stream, 'workers', '$', 'MKSTREAM');
$ok($create());
check(str_contains($create(), 'BUSYGROUP'), true);
for ($i = 0; $i < 10; $i++) {
    $r->psetex("job:$i", 50, "value $i");
}
$entries = [];
within(20, function () use (&$entries, $read) {
    $entries = array_merge($entries, $read('>')[0][1] ?? []);
    return count($entries) === 10;
});
$got = array_map(fn ($e) => array_combine(...array_map(null, ...array_chunk($e[1], 2))), $entries);
$sorted = function (string $field) use ($got) {
    $list = array_column($got, $field);
    sort($list);
    return $list;
};
check($sorted('key'), array_map(fn ($i) => "job:$i", range(0, 9)));
check($sorted('value'), array_map(fn ($i) => "value $i", range(0, 9)));
$ids = array_column($entries, 0);
check(raw('XPENDING', $stream, 'workers')[0], 10);
check(count(raw('XPENDING', $stream, 'workers', '-', '+', '100')), 10);
$ack = fn (array $ids) => $predis ? raw('XACK', $stream, 'workers', ...$ids) : $r->xAck($stream, 'workers', $ids);
check($ack(array_slice($ids, 0, 8)), 8);
check($ack(array_slice($ids, 0, 8)), 0);
check(count($read('0')[0][1]), 2);
check(count(raw('XAUTOCLAIM', $stream, 'workers', 'w2', '0', '0-0', 'COUNT', '10')[1]), 2);
check(raw('XLEN', $stream) >= 2, true);
check($ack(array_slice($ids, 8)), 2);
check(raw('XPENDING', $stream, 'workers')[0], 0);
check(count(raw('XINFO', 'GROUPS', $stream)), 1);
ok('streams');

// Restart.
$r->psetex('after', 4000, 'v');
$r->psetex('job:after', 4000, 'v');
$r->setex('kept', 600, 'v');
echo "restart\n";
fgets(STDIN);
check(within(20, fn () => again(fn () => $r->get('kept'))), 'v');
within(20, fn () => $heardOf('after'));
$entry = within(20, fn () => again(fn () => $read('>')[0][1][0] ?? null));
check($entry[1][1], 'job:after');
check($ack([$entry[0]]), 1);
ok('restart');
