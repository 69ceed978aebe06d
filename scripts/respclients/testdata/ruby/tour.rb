# What a program does with redis-rb: tour.rb HOST PORT PASSWORD.

require "redis"

$stdout.sync = true
HOST, PORT, PASSWORD = ARGV[0], ARGV[1].to_i, ARGV[2]

def client(**more)
  Redis.new(host: HOST, port: PORT, password: PASSWORD, id: "tour", reconnect_attempts: 3, **more)
end

def ok(step) = puts("ok #{step}")

def check(got, want)
  raise "got #{got.inspect}, want #{want.inspect}" unless got == want
end

def within(seconds)
  limit = Time.now + seconds
  until (found = yield)
    raise "still waiting after #{seconds} s" if Time.now > limit
    sleep 0.01
  end
  found
end

def raised(kind)
  yield
rescue kind => err
  err.message
else
  raise "no #{kind}"
end

R = client

def connection
  check R.ping, "PONG"
  check R.call("CLIENT", "GETNAME"), "tour"
  raise "no version" unless R.info["redis_version"]
  check R.echo("hello"), "hello"
  raised(Redis::CommandError) { client(password: "wrong").ping }
  raise "no unknown command" unless raised(Redis::CommandError) { R.call("NOSUCH") }.include?("unknown command")
  check client(username: "default").ping, "PONG"
end

def keys
  check R.set("k", "v", ex: 100), "OK"
  check R.get("k"), "v"
  raise "TTL" unless [99, 100].include?(R.ttl("k"))
  check R.expire("k", 50), true
  raise "PTTL" unless R.pttl("k") <= 50_000
  check R.persist("k"), true
  check R.ttl("k"), -1
  check R.expireat("k", Time.now.to_i + 60), true
  check R.set("k", "w", nx: true), false
  check R.set("k", "w", xx: true, keepttl: true), true
  raise "TTL" unless R.ttl("k") > 50
  check R.set("k", "x", px: 90_000, get: true), "w"
  check R.getset("k", "y"), "x"
  check R.setex("k2", 70, "z"), "OK"
  check R.psetex("k3", 70_000, "z"), "OK"
  check R.setnx("k4", "z"), true
  check R.getex("k2", ex: 80), "z"
  check R.getdel("k4"), "z"
  check R.mset("m1", "1", "m2", "2"), "OK"
  check R.mget("m1", "missing", "m2"), ["1", nil, "2"]
  check R.exists("k", "k2", "missing"), 2
  check R.type("k"), "string"
  check R.append("m1", "23"), 3
  check R.strlen("m1"), 3
  check R.rename("m1", "m3"), "OK"
  check R.del("k", "k2", "k3", "m2", "m3", "missing"), 5
  check R.get("k"), nil
  check R.ttl("k"), -2
  binary = (0..255).to_a.pack("C*")
  check R.set(binary, binary, ex: 60), "OK"
  check R.get(binary).b, binary
  check R.unlink(binary), 1
end

def numbers
  check R.incr("n"), 1
  check R.incrby("n", 9), 10
  check R.decr("n"), 9
  check R.incrbyfloat("n", 0.5), 9.5
  raised(Redis::CommandError) { R.incr("n") }
  check R.del("n"), 1
end

def scan
  names = (0...250).map { |i| "scan:#{i}" }.sort
  check R.pipelined { |p| names.each { |name| p.set(name, "v", ex: 300) } }, ["OK"] * 250
  check R.scan_each(match: "scan:*", count: 17).to_a.uniq.sort, names
  check R.keys("scan:*").sort, names
  check R.keys("scan:?").size, 10
  raise "DBSIZE" unless R.dbsize >= 250
  check R.del(*names), 250
end

def transactions
  answers = R.multi do |m|
    m.set("t", "1", ex: 60)
    m.incr("t")
    m.get("t")
  end
  check answers, ["OK", 2, "2"]
  other = client
  lost = R.watch("t") do
    other.set("t", "5")
    R.multi { |m| m.set("t", "9") }
  end
  check lost, nil
  check R.get("t"), "5"
  R.del("t")
end

HEARD = Hash.new { |all, key| all[key] = [] } # the moments of the events of each key
CHAT = Queue.new
SUBSCRIBED = Queue.new

# subscribe hears until the program ends. It subscribes again after an error, as redis-rb leaves it
# to its users.
def subscribe(how, *channels)
  Thread.new do
    loop do
      client(reconnect_attempts: 0).public_send(how, *channels) do |on|
        on.public_send(how) { SUBSCRIBED << how }
        hear = lambda do |channel, text|
          channel == "chat" ? CHAT << text : HEARD[text] << Time.now
        end
        on.message(&hear)
        on.pmessage { |_pattern, channel, text| hear.call(channel, text) }
      end
    rescue Redis::BaseConnectionError
      sleep 0.05
    end
  end.report_on_exception = true
end

def subscriptions
  R.config(:set, "notify-keyspace-events", "Ex")
  subscribe(:psubscribe, "__key*__:exp*")
  subscribe(:subscribe, "__keyevent@0__:expired", "chat")
  3.times { SUBSCRIBED.pop }
  due = {}
  20.times do |i|
    due["e:#{i}"] = Time.now + 0.3 + i / 100.0
    R.set("e:#{i}", "v", px: 300 + i * 10)
  end
  within(20) { due.keys.all? { |key| HEARD[key].size == 2 } }
  late = due.flat_map { |key, at| HEARD[key].map { |moment| moment - at } }
  raise "from #{late.min} to #{late.max} s late" if late.min < -0.001 || late.max > 2
  puts "late by at most #{(late.max * 1000).round(1)} ms"
  check R.publish("chat", "hello"), 1
  check CHAT.pop, "hello"
end

STREAM = "expired:jobs"

def streams
  check R.xgroup(:create, STREAM, "workers", "$", mkstream: true), "OK"
  raised(Redis::CommandError) { R.xgroup(:create, STREAM, "workers", "$", mkstream: true) }
  check R.xreadgroup("workers", "w1", STREAM, ">", block: 20), {}
  10.times { |i| R.set("job:#{i}", "value #{i}", px: 50) }
  entries = []
  within(20) do
    entries += R.xreadgroup("workers", "w1", STREAM, ">", count: 10, block: 2000)[STREAM].to_a
    entries.size == 10
  end
  check entries.map { |_, fields| fields["key"] }.sort, (0..9).map { |i| "job:#{i}" }
  check entries.map { |_, fields| fields["value"] }.sort, (0..9).map { |i| "value #{i}" }
  ids = entries.map(&:first)
  pending = R.xpending(STREAM, "workers")
  check [pending["size"], pending["consumers"]], [10, { "w1" => "10" }]
  check R.xpending(STREAM, "workers", "-", "+", 100).size, 10
  check R.xack(STREAM, "workers", *ids.first(8)), 8
  check R.xack(STREAM, "workers", *ids.first(8)), 0
  check R.xreadgroup("workers", "w1", STREAM, "0")[STREAM].size, 2
  check R.xautoclaim(STREAM, "workers", "w2", 0, "0-0", count: 10)["entries"].size, 2
  raise "XLEN" unless R.xlen(STREAM) >= 2
  check R.xack(STREAM, "workers", *ids.last(2)), 2
  check R.xpending(STREAM, "workers")["size"], 0
  check R.xinfo(:groups, STREAM).map { |g| g["name"] }, ["workers"]
end

def restart
  R.set("after", "v", px: 4000)
  R.set("job:after", "v", px: 4000)
  R.set("kept", "v", ex: 600)
  puts "restart"
  $stdin.gets
  again = lambda do |&f|
    f.call
  rescue Redis::BaseConnectionError
    nil
  end
  check within(20) { again.call { R.get("kept") } }, "v"
  within(20) { HEARD["after"].any? }
  id, fields = within(20) { again.call { R.xreadgroup("workers", "w1", STREAM, ">", block: 1000)[STREAM]&.first } }
  check fields["key"], "job:after"
  check R.xack(STREAM, "workers", id), 1
end

%i[connection keys numbers scan transactions subscriptions streams restart].each do |step|
  send(step)
  ok step
end
exit!(0)
