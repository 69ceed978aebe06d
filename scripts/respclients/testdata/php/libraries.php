<?php
// What libraries do that need scripts or conditions: libraries.php HOST PORT PASSWORD.
// With "session" after that it is one request of a session: it counts, and takes its time.

error_reporting(E_ALL & ~E_DEPRECATED); // Predis 1 is older than PHP 8
[, $host, $port, $password] = $argv;

function check(mixed $got, mixed $want): void
{
    if ($got !== $want) {
        throw new Exception('got ' . var_export($got, true) . ', want ' . var_export($want, true));
    }
}

function ok(string $name): void
{
    echo "ok $name\n";
}

if (($argv[4] ?? '') === 'session') {
    ini_set('session.save_handler', 'redis');
    ini_set('session.save_path', "tcp://$host:$port?auth=" . urlencode($password) . '&prefix=php:');
    ini_set('session.use_cookies', '0');
    ini_set('session.cache_limiter', '');
    ini_set('redis.session.locking_enabled', '1');
    ini_set('redis.session.lock_retries', '-1');
    ini_set('redis.session.lock_wait_time', '2000');
    ini_set('redis.session.lock_expire', '30');
    session_id('shared');
    check(session_start(), true);
    $n = $_SESSION['n'] ?? 0;
    usleep(30_000); // another request that does not wait would count from the same number
    $_SESSION['n'] = $n + 1;
    check(session_write_close(), true);
    exit(0);
}

// Requests of one session run at the same time: each waits for the lock, and releases its own.
$requests = [];
for ($i = 0; $i < 6; $i++) {
    $requests[] = proc_open([PHP_BINARY, __FILE__, $host, $port, $password, 'session'], [], $pipes);
}
foreach ($requests as $p) {
    check(proc_close($p), 0);
}
$r = new Redis();
$r->connect($host, (int) $port, 5.0);
$r->auth($password);
check($r->get('php:shared'), 'n|i:6;');
check($r->exists('php:shared_LOCK'), 0);
ok('phpredis session locking');

check($r->eval("return {KEYS[1], ARGV[1], redis.call('incr', KEYS[1])}", ['evaluated', 'a'], 1), ['evaluated', 'a', 1]);
$sha = $r->script('load', 'return ARGV[1]');
check($r->evalSha($sha, ['x'], 0), 'x');
check($r->evalSha(str_repeat('a', 40), [], 0), false);
check(str_starts_with($r->getLastError(), 'NOSCRIPT'), true);
ok('phpredis eval');

require 'Predis/Autoloader.php';
Predis\Autoloader::register();

// A lock as the cache of Laravel has it: SET NX EX, and a script that deletes what is still its own.
class Release extends Predis\Command\ScriptCommand
{
    public function getKeysCount(): int
    {
        return 1;
    }

    public function getScript(): string
    {
        return "local owner = redis.call('get', KEYS[1]) if owner ~= ARGV[1] then return 0 end return redis.call('del', KEYS[1])";
    }
}

$c = new Predis\Client(['host' => $host, 'port' => (int) $port, 'password' => $password]);
$c->getProfile()->defineCommand('release', 'Release');
check((string) $c->set('laravel', 'mine', 'EX', 100, 'NX'), 'OK');
check($c->set('laravel', 'yours', 'EX', 100, 'NX'), null);
check($c->release('laravel', 'yours'), 0);
check($c->release('laravel', 'mine'), 1);
check($c->exists('laravel'), 0);
check($c->eval("return redis.call('exists', KEYS[1]) < 1 and redis.call('setex', KEYS[1], ARGV[2], ARGV[1])", 1, 'added', 'v', 100)->getPayload(), 'OK');
check($c->eval("return redis.call('exists', KEYS[1]) < 1 and redis.call('setex', KEYS[1], ARGV[2], ARGV[1])", 1, 'added', 'v', 100), null);
ok('Predis ScriptCommand');
