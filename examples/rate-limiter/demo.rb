# frozen_string_literal: true

# Two clients, of which one asks too often.

require "redis"
require_relative "rate_limiter"

hello = ->(_env) { [200, {}, ["hello\n"]] }
redis = Redis.new(url: ENV.fetch("REDIS_URL", "redis://127.0.0.1:7479"))
app = RateLimiter.new(hello, redis: redis, limit: 3, window_ms: 2000)

ask = lambda do |address|
  status, headers, body = app.call("REMOTE_ADDR" => address)
  puts "#{address}: #{status} #{body.first}"
  headers
end

4.times { ask.call("10.0.0.1") }
headers = ask.call("10.0.0.1")
ask.call("10.0.0.2")
puts "10.0.0.1 waits until its window is over"
sleep headers.fetch("retry-after").to_i
ask.call("10.0.0.1")
