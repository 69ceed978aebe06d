# frozen_string_literal: true

# Rack middleware: at most so many requests of an address in a window.
class RateLimiter
  def initialize(app, redis:, limit:, window_ms:)
    @app = app
    @redis = redis
    @limit = limit
    @window_ms = window_ms
  end

  def call(env)
    count, left_ms = count_of("limit:#{env['REMOTE_ADDR']}")
    return @app.call(env) if count <= @limit

    [429, { "retry-after" => (left_ms / 1000.0).ceil.to_s }, ["too many requests\n"]]
  end

  private

  # The first request begins the window. The key ends with it, and nobody cleans up.
  def count_of(key)
    _, count, left_ms = @redis.multi do |transaction|
      transaction.set(key, 0, px: @window_ms, nx: true)
      transaction.incr(key)
      transaction.pttl(key)
    end
    [count, left_ms]
  end
end
