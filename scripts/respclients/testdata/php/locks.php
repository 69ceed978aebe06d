<?php
// A lock as the cache of Laravel has it, through Predis: locks.php NAME HOST:PORT...
//
// Each line of the output says from when to when this process has had the lock, by its own clock. A
// command that has failed is repeated at the next address. If the lock is there then, and has the
// token of this process, the process has it.

error_reporting(E_ALL & ~E_DEPRECATED); // Predis 1 is older than PHP 8
require 'Predis/Autoloader.php';
Predis\Autoloader::register();

class Release extends Predis\Command\ScriptCommand
{
    public function getKeysCount(): int
    {
        return 1;
    }

    public function getScript(): string
    {
        return "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    }
}

const SECONDS = 20; // that the lock is held at most
$name = $argv[1];
$clients = array_map(function (string $address): Predis\Client {
    [$host, $port] = explode(':', $address);
    $c = new Predis\Client(['host' => $host, 'port' => (int) $port, 'password' => getenv('PASSWORD'), 'timeout' => 1.0, 'read_write_timeout' => 3.0]);
    $c->getProfile()->defineCommand('release', 'Release');
    return $c;
}, array_slice($argv, 2));
$at = 0;

function call(callable $f): mixed
{
    global $clients, $at;
    for (;;) {
        try {
            return $f($clients[$at]);
        } catch (Predis\Connection\ConnectionException) {
            $clients[$at]->disconnect();
        } catch (Predis\Response\ServerException $e) {
            if (!preg_match('/^(TRYAGAIN|UNKNOWN|LOADING) /', $e->getMessage())) {
                throw $e;
            }
        }
        $at = ($at + 1) % count($clients);
        usleep(100_000);
    }
}

for ($i = 0;; $i++) {
    $token = "$name-$i";
    $begun = microtime(true);
    $got = call(fn ($c) => (string) $c->set('lock:report', $token, 'EX', SECONDS, 'NX') === 'OK' || $c->get('lock:report') === $token);
    if (!$got) {
        usleep(5_000);
        continue;
    }
    $from = microtime(true);
    usleep(2_000);
    $to = microtime(true);
    if ($to < $begun + SECONDS) { // else it may be over
        printf("lock %.3f %.3f\n", $from * 1000, $to * 1000);
    }
    call(fn ($c) => $c->release('lock:report', $token));
    usleep(2_000);
}
